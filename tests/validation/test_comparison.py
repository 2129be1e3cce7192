"""Errors of recordings made of simulated runs: none at all, or those that were put in."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.trace.model import SavedTensor
from simgpu.validation.comparison import Counterpart, Numbers, compare_recording
from simgpu.validation.measured import Case, MeasuredRun, Method
from simgpu.validation.outcome import TARGETS, ComparedRun, Quantity, Validation, relative_error
from simgpu.validation.tables import (
    error_text,
    fraction_text,
    notes_on,
    report_tables,
    summary_facts,
    timeline_tables,
    validation_text,
)
from simgpu.validation.timelines.comparison import Agreement, Event, Row, StreamComparison, TimelineComparison
from tests.validation.example_recording import (
    MACHINE,
    MIB,
    SETTINGS,
    example_case,
    example_run,
    example_trace,
    recording_of,
)

MANAGED = tuple(method for method in SETTINGS if method is not Method.PLAIN)


@pytest.fixture(scope="module")
def case() -> Case:
    return example_case()


@pytest.fixture(scope="module")
def equal(case: Case) -> Validation:
    return compare_recording(recording_of(case, example_case(3)))


def changed(case: Case, method: Method, **what: object) -> Case:
    return replace(case, runs={**case.runs, method: replace(case.runs[method], **what)})


def known(*pairs: tuple[Method, Numbers, Numbers | None]) -> Validation:
    """Runs with these numbers: method, measured, simulated."""
    runs = []
    for method, measured, simulated in pairs:
        step, peak, out, back = measured
        counterpart = Counterpart(
            simulated, failure="" if simulated else "out of memory", reason="" if simulated else "too small"
        )
        runs.append(ComparedRun("small-b8", method, MeasuredRun(method, {}, (step,), peak, 0, out, back), counterpart))
    result = compare_recording(recording_of(Case("small", 8, example_trace(), {})))
    return replace(result, cases=(replace(result.cases[0], name="small-b8", runs=tuple(runs), reason=""),))


def test_runs_equal_to_their_simulation_have_no_error(equal: Validation) -> None:
    assert len(equal.runs) == 8
    assert {run.error(quantity) for run in equal.runs for quantity in Quantity} == {0.0}
    assert [(each.mean, each.worst) for each in equal.summaries.values()] == [(0.0, 0.0)] * 4
    assert [each.met for each in equal.summaries.values()] == [True, True, None, None]


def test_equal_timelines_do_not_diverge(equal: Validation) -> None:
    comparisons = [run.timelines for run in equal.runs]
    assert all(comparison is not None and comparison.first_divergence is None for comparison in comparisons)
    assert {row[3] for row in report_tables(equal)[-1].rows} == {"same"}
    assert equal.same_order_counts == (8, 8)


def test_the_plain_step_is_excluded_and_its_memory_included(equal: Validation) -> None:
    counts = {quantity: summary.compared for quantity, summary in equal.summaries.items()}
    copying = sum(run.measured.d2h_bytes > 0 for run in equal.runs)
    assert counts == {Quantity.STEP: 6, Quantity.PEAK: 8, Quantity.OUT: copying, Quantity.IN: copying}
    assert 0 < copying < 8


@given(st.sampled_from(MANAGED), st.integers(1, 10**9), st.integers(1, 2**34))
@settings(max_examples=15, deadline=None)
def test_a_changed_measurement_changes_only_the_error_of_its_run(method: Method, step: int, peak: int) -> None:
    base = _base()
    result = compare_recording(recording_of(changed(base, method, step_ns=(step,), peak_bytes=peak)))
    expected = base.runs[method]
    run = result.cases[0][method]
    assert run.error(Quantity.STEP) == float(Fraction(expected.median_ns - step, step))
    assert run.error(Quantity.PEAK) == float(Fraction(expected.peak_bytes - peak, peak))
    assert all(other.error(quantity) == 0 for other in result.runs for quantity in Quantity if other is not run)
    summary = result.summaries[Quantity.STEP]
    assert summary.worst == abs(run.error(Quantity.STEP) or 0)
    assert summary.mean == pytest.approx(summary.worst / 3)


_KEPT: list[Case] = []


def _base() -> Case:
    """A fixture that Hypothesis may use."""
    if not _KEPT:
        _KEPT.append(example_case())
    return _KEPT[0]


NUMBERS = st.builds(Numbers, *[st.integers(1, 10**12)] * 4)


@given(st.lists(st.tuples(st.sampled_from(Method), NUMBERS, NUMBERS), min_size=1, max_size=8))
def test_mean_and_worst_are_those_of_the_runs_that_count(pairs: list[tuple[Method, Numbers, Numbers]]) -> None:
    result = known(*pairs)
    for at, quantity in enumerate(Quantity):
        stored = [pair for pair in pairs if quantity is not Quantity.STEP or pair[0] is not Method.PLAIN]
        errors = [Fraction(abs(expected[at] - simulated[at]), simulated[at]) for _, simulated, expected in stored]
        summary = result.summaries[quantity]
        assert summary.compared == len(errors)
        if not errors:
            assert (summary.mean, summary.worst, summary.met) == (None, None, None)
            continue
        assert summary.worst == pytest.approx(float(max(errors)))
        assert summary.mean == pytest.approx(float(sum(errors) / len(errors)))


@pytest.mark.parametrize(
    ("steps", "met"),
    [((110, 100, 100), True), ((90, 100, 100), True), ((111, 100, 100), False), ((106, 105, 105), False)],
)
def test_the_step_time_target_is_mean_5_and_worst_10_percent(steps: tuple[int, ...], met: bool) -> None:
    pairs = zip(MANAGED, steps, strict=True)
    result = known(*((method, Numbers(100, 1, 0, 0), Numbers(step, 1, 0, 0)) for method, step in pairs))
    assert result.summaries[Quantity.STEP].met is met
    assert summary_facts(result)[0][1].endswith("target mean 5%, worst 10%: MET" if met else "worst 10%: MISSED")


@pytest.mark.parametrize(("peak", "met"), [(1020, True), (980, True), (1021, False)])
def test_the_peak_memory_target_is_worst_2_percent(peak: int, met: bool) -> None:
    result = known((Method.PLAIN, Numbers(1, 1000, 0, 0), Numbers(1, peak, 0, 0)))
    assert result.summaries[Quantity.PEAK].met is met
    assert TARGETS[Quantity.PEAK].mean is None


def test_plain_error_is_the_error_of_assuming_the_plain_value():
    plain, one, other = Numbers(100, 50, 0, 0), Numbers(125, 40, 0, 0), Numbers(200, 50, 0, 0)
    result = known((Method.PLAIN, plain, plain), (Method.CHECKPOINT, one, one), (Method.SAVE_ON_CPU, other, other))
    plain_error = {quantity: summary.plain_error for quantity, summary in result.summaries.items()}
    assert (plain_error[Quantity.STEP], plain_error[Quantity.PEAK]) == ((0.2 + 0.5) / 2, (0.25 + 0) / 2)
    assert plain_error[Quantity.OUT] is None is plain_error[Quantity.IN]


def test_a_run_that_is_not_simulated_is_excluded_noted_and_misses_the_target():
    good, numbers = Numbers(100, 100, 0, 0), Numbers(100, 100, 0, 0)
    result = known((Method.CHECKPOINT, good, numbers), (Method.SAVE_ON_CPU, good, None))
    summary = result.summaries[Quantity.STEP]
    assert (summary.compared, summary.worst, summary.met) == (1, 0.0, False)
    assert [run.method for run in summary.failed] == [Method.SAVE_ON_CPU]
    assert "1 measured, not simulated" in summary_facts(result)[0][1]
    assert "small-b8, save_on_cpu: not simulated, out of memory: too small" in notes_on(result)


def test_an_out_of_memory_counterpart_is_noted(case: Case) -> None:
    small = replace(MACHINE, memory=142 * MIB)
    result = compare_recording(recording_of(case, machine=small))
    assert result.cases[0]["plain"].failure == "out of memory"
    assert any("plain: not simulated, out of memory" in note and "kernel" in note for note in notes_on(result))


def test_a_trace_without_recorded_saved_tensors_is_noted_once(equal: Validation, case: Case) -> None:
    """Counterparts then do what is derived, which may be something else than was run."""
    guessed = "tensors that autograd saves: derived from what backward reads, since the trace does not record them"
    assert [note for note in notes_on(equal) if guessed in note] == [f"{each.name}: {guessed}." for each in equal.cases]
    assert guessed in equal.to_dict()["cases"][0]["runs"][-1]["notes"]
    kernels = case.trace.kernels
    saved = SavedTensor(case.trace.blocks[0].id, 1, kernels[0].id, kernels[-1].id)
    message = replace(case, trace=replace(case.trace, saved=(saved,)))
    assert not any(guessed in note for note in notes_on(compare_recording(recording_of(message))))


def test_a_method_without_a_measured_run_is_noted(case: Case) -> None:
    fewer = {method: run for method, run in case.runs.items() if method is not Method.SAVE_ON_CPU}
    result = compare_recording(recording_of(replace(case, runs=fewer, absent={Method.SAVE_ON_CPU: "out of memory"})))
    assert len(result.runs) == 3
    step, peak, *_ = report_tables(result)
    assert ("", "save_on_cpu", "not run", "-", "-", "-") in step.rows
    assert ("", "save_on_cpu", "not run", "-", "-") in peak.rows
    assert "example-b8, save_on_cpu: not run on the device: out of memory" in notes_on(result)


def test_without_a_plain_run_nothing_is_calibrated(case: Case) -> None:
    fewer = {method: run for method, run in case.runs.items() if method is not Method.PLAIN}
    result = compare_recording(recording_of(replace(case, runs=fewer, absent={Method.PLAIN: "out of memory"})))
    assert {run.failure for run in result.runs} == {"not calibrated"}
    assert result.summaries[Quantity.STEP].met is None
    assert summary_facts(result)[0][1] == "nothing to compare: 3 measured runs could not be simulated"
    assert any("nothing can be calibrated without a plain run" in note for note in notes_on(result))


def test_an_unmatched_plain_run_is_noted_and_affects_no_other_case(case: Case) -> None:
    alien = tuple(span._replace(op="aten::alien") for span in case.runs[Method.PLAIN].spans)
    broken = replace(changed(case, Method.PLAIN, spans=alien), batch=99)
    result = compare_recording(recording_of(case, broken))
    assert [each.calibration is None for each in result.cases] == [False, True]
    assert any("no operator call on the device" in note for note in notes_on(result))


def test_a_late_copy_diverges_in_time_and_another_copy_in_order(case: Case) -> None:
    run = case.runs[Method.ASYNC_OFFLOAD]
    copies = [span for span in run.spans if span.stream == "d2h"]
    later = run.step_ns[0] // 10
    late = copies[0]._replace(start_ns=copies[0].start_ns + later, end_ns=copies[0].end_ns + later)
    other = copies[1]._replace(bytes=copies[1].bytes + 1)
    for old, new, other_order in ((copies[0], late, False), (copies[1], other, True)):
        spans = tuple(new if span is old else span for span in run.spans)
        result = compare_recording(recording_of(changed(case, Method.ASYNC_OFFLOAD, spans=spans)))
        compute, d2h, h2d = next(row[3:] for row in report_tables(result)[-1].rows if row[1] == "async_offload")
        assert (compute, h2d) == ("same", "same")
        assert d2h.endswith(", order") is other_order and "same" not in d2h
        assert result.same_order_counts == (4 - other_order, 4)


def test_the_spread_is_the_distance_of_the_quartiles(case: Case) -> None:
    result = compare_recording(recording_of(changed(case, Method.CHECKPOINT, step_ns=(100, 104, 96, 90, 200))))
    assert result.cases[0][Method.CHECKPOINT].spread == 0.08
    single = compare_recording(recording_of(changed(case, Method.CHECKPOINT, step_ns=(100,))))
    assert single.cases[0][Method.CHECKPOINT].spread is None


def test_cases_and_methods_can_be_chosen_and_are_still_calibrated_to_the_plain_run(case: Case) -> None:
    full = recording_of(case, example_case(3))
    result = compare_recording(full, cases=["example-b24"], methods=["checkpoint"])
    assert [(run.case, run.method, run.error(Quantity.STEP)) for run in result.runs] == [
        ("example-b24", Method.CHECKPOINT, 0.0)
    ]


@pytest.mark.parametrize(
    ("choice", "what"),
    [({"cases": ["example-b9"]}, "no case 'example-b9'"), ({"methods": ["chekpoint"]}, "no method 'chekpoint'")],
)
def test_cases_and_methods_without_a_recording_are_refused(case: Case, choice: dict[str, list[str]], what: str) -> None:
    with pytest.raises(InputError, match=what):
        compare_recording(recording_of(case), **choice)


def test_cases_come_by_model_and_batch(equal: Validation) -> None:
    turned = compare_recording(recording_of(example_case(13, methods=()), example_case(2, methods=())))
    assert [case.name for case in turned.cases] == ["example-b16", "example-b104"]
    assert equal["example-b24"]["plain"].method is Method.PLAIN
    with pytest.raises(KeyError):
        equal["nothing"]


def test_the_frame_has_a_row_a_run(equal: Validation) -> None:
    frame = equal.frame()
    assert len(frame) == 8
    assert frame.set_index(["case", "method"]).loc[("example-b8", "plain"), "calibrated"]
    assert (frame["error_step_ns"] == 0).all() and (frame["measured_peak_bytes"] == frame["simulated_peak_bytes"]).all()


def test_infinite_errors_are_null_in_json():
    result = known((Method.CHECKPOINT, Numbers(100, 0, 0, 0), Numbers(100, 5, 7, 0)))
    message = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert message["summary"]["peak_bytes"] == {
        "compared": 1,
        "mean": None,
        "worst": None,
        "worst_run": {"case": "small-b8", "method": "checkpoint"},
        "plain_error": None,
        "failed": [],
        "target": {"mean": None, "worst": 0.02},
        "met": False,
    }
    assert result.runs[0].error(Quantity.PEAK) == math.inf
    assert (error_text(math.inf), fraction_text(math.inf)) == ("not 0", "unbounded")


def test_the_text_has_at_most_80_columns(equal: Validation) -> None:
    text = validation_text(equal)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "Example GPU 80GB, 80 GiB, measured on 2026-01-31" in text
    assert "no managed run was fitted to" in " ".join(text.split())
    assert "MET" in text and "NOTE" not in text
    assert text.count("equal") >= 12, "a peak of each run, and what is copied"


def test_large_errors_fit_in_80_columns() -> None:
    for simulated, error in ((1, "-100%"), (432_100_000, "+250%")):
        numbers = Numbers(123_400_000, 393 * MIB + 1, 0, 0), Numbers(simulated, 393 * MIB, 0, 0)
        text = validation_text(known((Method.ASYNC_OFFLOAD, *numbers)))
        assert error in text and max(map(len, text.splitlines())) <= 80


def test_a_single_run_is_singular() -> None:
    good = Numbers(100, 100, 0, 0)
    assert "1 managed run;" in dict(summary_facts(known((Method.CHECKPOINT, good, good))))["step time"]
    none = dict(summary_facts(known((Method.CHECKPOINT, good, None))))["step time"]
    assert none == "nothing to compare: 1 measured run could not be simulated"


def test_timeline_rows_have_names_and_bytes() -> None:
    event = Event("copy_h2d", "", "stage3.pool:max_pool2d_with_indices:saved", 10**8, 2 * 10**8, 512 * 1024)
    rows = (
        Row("h2d", 0, Agreement.SAME, event, event),
        Row("h2d", 1, Agreement.DIFFERENT, event, event._replace(bytes=4)),
        Row("h2d", 2, Agreement.ONLY_MEASURED, event, None),
    )
    (table,) = timeline_tables(TimelineComparison({"h2d": StreamComparison("h2d", rows, 5)}, 9, 9, 5))
    assert table.headings[0] == "h2d"
    name = f"copy_h2d {event.name}"
    assert table.rows == [
        ("  0", "100 ms", "100 ms", "0 ns", f"{name} 512 KiB"),
        ("> 1", "100 ms", "100 ms", "0 ns", f"{name} 512 KiB, simulated {name} 4 B"),
        ("  2", "100 ms", "-", "-", f"only measured: {name} 512 KiB"),
    ]


def test_every_run_has_a_row_of_its_case(equal: Validation) -> None:
    for table in report_tables(equal)[:2]:
        rows = table.rows[:4]
        assert [row[0] for row in rows] == ["example-b8", "", "", ""]
        assert [row[1] for row in rows] == list(map(str, SETTINGS))
        assert {row[-1] for row in rows} <= {"equal", "fitted"}


def test_a_cpu_recording_has_a_note(case: Case) -> None:
    result = compare_recording(recording_of(case, machine=replace(MACHINE, kind="cpu", device="a CPU")))
    assert result.on_cpu
    assert "NOTE: measured on a CPU" in validation_text(result)


@given(st.integers(-(10**6), 10**6), st.integers(1, 10**6))
def test_the_error_is_positive_if_more_was_simulated(off: int, measured: int) -> None:
    error = relative_error(max(measured + off, 0), measured)
    assert (error > 0) is (off > 0)
    assert error >= -1


def test_example_runs_are_deterministic(case: Case) -> None:
    """The recordings here are what simulation says: made twice they are the same."""
    assert example_run(example_trace(), Method.SAVE_ON_CPU) == case.runs[Method.SAVE_ON_CPU]
