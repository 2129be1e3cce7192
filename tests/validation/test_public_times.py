"""Times of published rows: the stored predictions, slowdowns and orders by closed forms, and a prediction made anew."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from simgpu.cli.validate_public import public
from simgpu.validation.public.figure import plot_scoreboard
from simgpu.validation.public.predicted import compared, covered_rows, stored_predictions
from simgpu.validation.public.times import (
    PredictedTime,
    compared_times,
    median_of,
    order_of_peaks,
    order_of_times,
    predict_time,
    slowdowns,
    stored_times,
    timed_rows,
)
from simgpu.workloads.timemodel.host import step_ns
from tests.validation.test_public_predictions import installed

TIMED = {row.id: row for row in timed_rows()}
TIMES = compared_times(TIMED.values(), stored_times())
PEAKS = compared(covered_rows(), stored_predictions())


def test_every_covered_time_is_predicted_and_no_other() -> None:
    assert stored_times().keys() == TIMED.keys()


def test_every_time_that_is_off_by_over_ten_percent_has_a_cause() -> None:
    assert all(abs(each.error) <= 0.1 or each.predicted.cause for each in TIMES)


def test_slowdowns_are_ratios_to_the_row_without_options() -> None:
    """With the published times as predictions, every error is zero; with one time doubled, only its row's is one."""
    exact = {row.id: PredictedTime(row.sample_ns, row.sample_ns, 1) for row in TIMED.values() if row.sample_ns}
    found = slowdowns(compared_times(TIMED.values(), exact))
    ratios = {each.row.id: each.baseline.id for each in found}
    of_bert = dict.fromkeys(("t-149", "t-150", "t-151", "t-152", "t-153", "t-154"), "t-148")
    of_titan = dict.fromkeys(("t-040", "t-041"), "t-039")
    assert ratios == of_bert | of_titan | {"t-089": "t-088", "t-206": "t-205", "t-232": "t-231", "t-238": "t-237"}
    assert all(each.error == 0 for each in found)
    doubled = exact | {"t-150": replace(exact["t-150"], step_ns=2 * exact["t-150"].step_ns)}
    errors = {each.row.id: each.error for each in slowdowns(compared_times(TIMED.values(), doubled))}
    assert [name for name, error in errors.items() if error] == ["t-150"] and errors["t-150"] == pytest.approx(1)


def test_pairs_are_right_in_the_measured_order_and_wrong_in_the_reverse() -> None:
    exact = {row.id: PredictedTime(row.sample_ns, row.sample_ns, 1) for row in TIMED.values() if row.sample_ns}
    right = order_of_times(compared_times(TIMED.values(), exact))
    turned = {name: replace(each, step_ns=10**12 // each.step_ns) for name, each in exact.items()}
    wrong = order_of_times(compared_times(TIMED.values(), turned))
    assert right.right == right.pairs == wrong.pairs > 15 and wrong.right == 0


def test_nine_of_ten_pairs_are_predicted_in_the_measured_order() -> None:
    for order in (order_of_times(TIMES), order_of_peaks(PEAKS)):
        assert order.pairs >= 20 and order.right >= 0.9 * order.pairs


def test_slowdowns_of_offload_on_the_stream_that_computes_are_predicted_within_two_percent() -> None:
    errors = {each.row.id: each.error for each in slowdowns(TIMES)}
    assert all(abs(errors[name]) < 0.02 for name in ("t-206", "t-232", "t-238"))


def test_copies_of_offload_are_the_inputs_of_layers_at_the_rate_of_the_link() -> None:
    """By hand: 28 layers' inputs of 65,536 x 1,024 values in bfloat16, both ways at 64 GB/s, for two micro-batches.

    What the head saves besides is less than a quarter of it.
    """
    stored = stored_times()["t-206"]
    copies = 2 * 2 * 28 * 65536 * 1024 * 2 / 64e9 * 1e9
    assert copies < stored.step_ns - stored.kernels_ns < 1.25 * copies
    assert stored.kernels_ns == stored_times()["t-205"].step_ns


def test_the_median_error_of_slowdowns_is_at_most_ten_percent() -> None:
    error = median_of(each.error for each in slowdowns(TIMES))
    assert error is not None and error <= 0.1


def test_the_plain_step_of_bert_takes_longer_than_its_products_at_the_peak_rate() -> None:
    """By hand: 12 products of 1024 x 1024 in each of 24 layers, 2048 tokens, and scores; 15.7 TFLOP/s; three passes."""
    tokens, width, length = 4 * 512, 1024, 512
    macs = 24 * (12 * width * width * tokens + 2 * length * width * tokens)
    least = 3 * 2 * macs / 15.7e12 * 1e9
    for step in (stored_times()["t-148"].kernels_ns, 4 * TIMED["t-148"].sample_ns):
        assert 1.3 < step / least < 2  # the rest: products below the peak, and what moves memory


@given(durations=st.lists(st.integers(0, 1000), max_size=40), operator=st.integers(0, 500), data=st.data())
def test_a_step_takes_at_least_its_kernels_and_at_least_its_launches(
    durations: list[int], operator: int, data: st.DataObject
) -> None:
    waits = data.draw(st.sets(st.integers(0, 40)))
    free, waiting = step_ns(durations, (), operator), step_ns(durations, waits, operator)
    kernels, launches = sum(durations), operator * len(durations)
    assert max(kernels, launches) <= free <= waiting <= kernels + launches


@pytest.mark.slow
def test_the_figure_has_a_point_for_every_published_value(tmp_path: Path) -> None:
    drawn = plot_scoreboard(PEAKS, TIMES)
    counts = [sum(len(line.get_xdata()) for line in ax.lines[1:]) for ax in drawn.axes]
    assert counts == [sum(peak.published is not None for peak in PEAKS), len(TIMES)]
    assert CliRunner().invoke(public, ["--plot", str(tmp_path / "board.svg")]).exit_code == 0
    assert "published time of a sample (ms)" in (tmp_path / "board.svg").read_text()
    refused = CliRunner().invoke(public, ["--plot", str(tmp_path / "board.txt")])
    assert refused.exit_code and "is not a format of figures" in str(refused.exception)


def test_the_command_has_times_slowdowns_and_orders() -> None:
    document = json.loads(CliRunner().invoke(public, ["--json"]).output)
    assert {each["id"] for each in document["times"]} == TIMED.keys()
    assert [each["subject"] for each in document["ordered_pairs"]] == ["memory", "time"]
    shown = CliRunner().invoke(public, []).output
    assert "slowdown: 12 of 13 comparable rows are covered" in shown


@pytest.mark.skipif(not installed("torch"), reason="needs the extra 'record'")
def test_the_trainers_step_clips_to_a_norm_of_one_and_keeps_gradients() -> None:
    """AdamW's first step by hand: without bias correction every weight moves by rate x 0.1 / sqrt(0.001)."""
    torch = pytest.importorskip("torch")
    from simgpu.validation.public.trainer import TrainerOptimizer

    weights = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2, 2))]
    optimizer = TrainerOptimizer(weights, adafactor=False)
    for weight in weights:
        weight.grad = torch.full_like(weight, -7.0)
    optimizer.step()
    assert sum(float(weight.grad.square().sum()) for weight in weights) == pytest.approx(1, rel=1e-5)
    moved = torch.cat([weight.detach().flatten() for weight in weights])
    assert torch.allclose(moved, torch.full_like(moved, 5e-5 * 0.1 / 0.001**0.5))
    gradients = [weight.grad for weight in weights]
    optimizer.zero_grad(set_to_none=True)
    assert all(weight.grad is old and not old.any() for weight, old in zip(weights, gradients, strict=True))


@pytest.mark.skipif(
    not (installed("torch") and installed("transformers", "4.51")),
    reason="needs the extras 'record' and 'predict' with transformers 4.51",
)
@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("t-041", "t-148", "t-206")),
        *(
            pytest.param(each, marks=pytest.mark.exhaustive)
            for each in TIMED
            if each not in ("t-041", "t-148", "t-206")
        ),
    ],
)
def test_a_predicted_time_comes_out_again(name: str) -> None:
    again, stored = predict_time(TIMED[name]), stored_times()[name]
    assert (again.step_ns, again.kernels_ns, again.samples) == (stored.step_ns, stored.kernels_ns, stored.samples)
