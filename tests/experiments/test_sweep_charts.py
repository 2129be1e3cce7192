"""Charts of a sweep: lines of runs, the Pareto front, and the columns that can be drawn."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pandas as pd
import pytest

import simgpu
from simgpu.analysis.plots import save_figure
from simgpu.errors import InputError
from simgpu.experiments.scenarios.load_sweep import make_sweep
from simgpu.experiments.scenarios.sweep import Sweep
from simgpu.experiments.scenarios.sweep_axes import SweepSection, axes_of
from simgpu.experiments.sweep.charts import pareto_front
from simgpu.experiments.sweep.labels import numeric_path
from simgpu.experiments.sweep.run import SweepResult
from tests.sets import slow_except

MIB = 2**20


@pytest.fixture(scope="module")
def result() -> SweepResult:
    rates = ["1 GB/s", "4 GB/s"]
    changes = {
        "policies": ["none", "vdnn"],
        "iterations": 1,
        "sweep.grid.budget": ["32 MiB", "64 MiB"],
        "sweep.zip": [{"node.link.d2h_bandwidth": rates, "node.link.h2d_bandwidth": rates}],
    }
    return simgpu.run_sweep(simgpu.load_sweep("memory-sweep", changes))


def test_there_is_a_line_per_policy_and_combination_of_other_axes(result: SweepResult) -> None:
    (ax,) = result.plot("iteration_ns", "d2h_bytes_per_s", references={"ideal": 1.0}).axes
    frame, lines = result.frame(), ["policy", "budget"]
    ran = frame[frame["outcome"] == "ok"]
    assert len([line for line in ax.lines if line.get_linestyle() != "None"]) == len(frame.groupby(lines)) + 1
    first = ran[(ran["policy"] == "none") & (ran["budget"] == "64 MiB")].sort_values("d2h_bytes_per_s")
    assert len(first) == 2
    assert any(list(line.get_ydata()) == pytest.approx(list(first["iteration_ns"] / 1e6)) for line in ax.lines)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("link, device to host (GB/s)", "step time (ms)")


def test_every_tried_value_is_on_the_axis_and_marked_where_it_is_out_of_memory(result: SweepResult) -> None:
    figure = result.plot("samples_per_s", "budget")
    (ax,) = figure.axes
    frame = result.frame()
    hollow = [line for line in ax.lines if line.get_markerfacecolor() == "white"]
    tried = frame[frame["policy"] == "none"].groupby(["d2h_bytes_per_s"])["budget"]
    assert [list(line.get_xdata()) for line in hollow] == [[32.0], [32.0]], "none fits 64 MiB only"
    assert all(list(budgets) == ["32 MiB", "64 MiB"] for _, budgets in tried)
    left, right = ax.get_xlim()
    assert left < 32 < 64 < right
    assert [text.get_text() for text in ax.texts] == ["OOM"]
    figure.canvas.draw()
    top = ax.get_window_extent().y1
    rows = [line.get_window_extent().y0 for line in hollow]
    assert rows[0] > rows[1] > top, "a row for each line above the axes, the first on top"
    assert all(line.get_window_extent().y1 < figure.bbox.y1 for line in hollow)


def test_points_that_end_in_different_failures_are_marked_with_each_reason() -> None:
    sweep = sweep_of({"budget": ["1 MiB", "1 GiB"], "policies": [["none"], ["cswap"]]})
    (ax,) = simgpu.run_sweep(sweep).plot("samples_per_s", "budget").axes
    assert [text.get_text() for text in ax.texts] == ["OOM", "refused"]
    hollow = [list(line.get_xdata()) for line in ax.lines if line.get_markerfacecolor() == "white"]
    assert hollow == [[1 / 1024], [1 / 1024, 1]]


def test_memory_in_figures_has_the_unit_of_the_largest_value(result: SweepResult) -> None:
    (ax,) = result.plot("device_peak_bytes", "budget_bytes").axes
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("budget (MiB)", "peak device memory (MiB)")
    assert max(x for line in ax.lines for x in line.get_xdata()) == 64
    assert "peak device memory (MiB)" in result.latex("device_peak_bytes")


def test_a_non_numeric_column_is_refused_with_a_suggestion(result: SweepResult) -> None:
    with pytest.raises(InputError, match=r"'samples' is not a numeric column of this sweep; .*samples_per_s"):
        result.plot("samples")
    with pytest.raises(InputError, match="argument x: 'policy' is not a numeric column"):
        result.plot(x="policy")


def test_the_front_contains_exactly_the_runs_that_are_not_dominated() -> None:
    rows = [
        (1, 10, "ok"),
        (1, 12, "ok"),
        (2, 11, "ok"),
        (2, 20, "ok"),
        (3, 20, "ok"),
        (4, 25, "ok"),
        (0, 99, "out of memory"),
    ]
    frame = pd.DataFrame(rows, columns=["device_peak_bytes", "samples_per_s", "outcome"])
    front = pareto_front(frame)
    assert [(row.device_peak_bytes, row.samples_per_s) for row in front.itertuples()] == [(1, 12), (2, 20), (4, 25)]
    ran = frame[frame["outcome"] == "ok"]
    for row in ran.itertuples():
        beaten = (ran["device_peak_bytes"] <= row.device_peak_bytes) & (ran["samples_per_s"] > row.samples_per_s)
        beaten |= (ran["device_peak_bytes"] < row.device_peak_bytes) & (ran["samples_per_s"] >= row.samples_per_s)
        assert beaten.any() == (row.Index not in front.index)


def test_the_front_is_drawn_as_steps_over_all_runs(result: SweepResult) -> None:
    (ax,) = result.plot_front().axes
    front = result.front()
    assert list(ax.lines[-1].get_xdata()) == pytest.approx(list(front["device_peak_bytes"].astype(float) / MIB))
    assert list(ax.lines[-1].get_ydata()) == pytest.approx(list(front["samples_per_s"].astype(float)))


def sweep_of(grid: dict[str, list[object]], **others: object) -> Sweep:
    values = {"trace": "resnet20-cifar-cpu", "node": "laptop-2gb", "policies": ["none"], "iterations": 1, **others}
    return make_sweep({**values, "sweep": {"grid": grid}}, "a test")


@pytest.mark.parametrize(
    ("path", "values", "label", "numbers"),
    [
        ("budget", ["50%", "112.5%"], "budget (% of the peak without offloading)", [50, 112.5]),
        ("budget", ["512 MiB", "1024 MiB"], "budget (MiB)", [512, 1024]),
        ("budget", ["512 MiB", "1 GiB"], "budget (GiB)", [0.5, 1]),
        ("budget", ["512 KiB", "20 MiB"], "budget (MiB)", [0.5, 20]),
        ("node.link.d2h_bandwidth", ["500 MB/s", "2 GB/s"], "link, device to host (GB/s)", [0.5, 2]),
        ("iterations", [1, 2], "iterations", [1, 2]),
    ],
)
def test_a_varied_path_with_numbers_is_an_axis(
    path: str, values: list[object], label: str, numbers: list[float]
) -> None:
    along = numeric_path(sweep_of({"seed": [0, 1], path: values}))
    assert (along.path, along.label, [along.number(value) for value in values]) == (path, label, numbers)


def test_a_path_without_numbers_is_no_axis() -> None:
    sweep = sweep_of({"budget": ["50%", "1 GiB"], "pool": ["counting", "addressed"]})
    with pytest.raises(InputError, match=r"varies no number .*: pool; vary a size"):
        numeric_path(sweep_of({"pool": ["counting", "addressed"]}))
    some = axes_of(SweepSection(points=[{"pool": "addressed"}, {"seed": 1}]))
    with pytest.raises(InputError, match=r"varies no number .*: pool, seed; vary a size"):
        numeric_path(replace(sweep, axes=some))
    with pytest.raises(InputError, match=r"the values of pool are not numbers: counting, addressed; name another path"):
        numeric_path(sweep, "pool")
    with pytest.raises(InputError, match=r"'bugdet' is not varied by this sweep; did you mean 'budget'"):
        numeric_path(sweep, "bugdet")


def test_values_of_several_kinds_are_named_with_the_remedy() -> None:
    sweep = sweep_of({"budget": ["50%", "1 GiB", "70%"]})
    mixed = (
        r"a test: sweep: the values of budget mix percentages \(50%, 70%\) and sizes \(1 GiB\); "
        "give all as percentages or all as sizes, or name another path"
    )
    for path in ("budget", None):
        with pytest.raises(InputError, match=mixed):
            numeric_path(sweep, path)
    points = [{"budget": "1 GiB"}, {"iterations": 2}]
    with pytest.raises(InputError, match="budget has no value at some points; give it one at every point, or name"):
        numeric_path(replace(sweep, axes=axes_of(SweepSection(points=points))), "budget")


def test_points_that_leave_a_value_out_have_a_label_without_it() -> None:
    points = [{"budget": "1 GiB", "pool": "addressed"}, {"budget": "2 GiB"}, {"budget": "0.5 GiB"}]
    values = {"trace": "resnet20-cifar-cpu", "node": "laptop-2gb", "policies": "none", "iterations": 1}
    result = simgpu.run_sweep(make_sweep({**values, "sweep": {"points": points}}, "a test"))
    (legend,) = result.plot("iteration_ns", "budget").legends
    assert [text.get_text() for text in legend.get_texts()] == ["addressed", "none"]


@pytest.fixture(scope="module")
def of_seeds() -> SweepResult:
    policies = ["none", "vdnn", {"home": {"particles": 4, "iterations": 2}}]
    budgets: list[object] = ["60%", "70%", "90%"]
    return simgpu.run_sweep(sweep_of({"budget": budgets, "seed": [0, 1, 2]}, policies=policies))


def test_several_seeds_are_one_line_with_their_deviation(of_seeds: SweepResult) -> None:
    figure = of_seeds.plot("iteration_ns", "budget")
    (legend,) = figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == ["none (OOM)", "vdnn", "home(particles=4, iterations=2)"]
    spread = of_seeds.seed_spread()
    home = spread[spread.policy == labels[2]]
    line = next(line for line in figure.axes[0].lines if len(line.get_xdata()) and line.get_ydata()[0] < 140)
    assert list(line.get_xdata()) == [60, 70, 90]
    assert list(line.get_ydata()) == pytest.approx(list(home.iteration_ns_mean / 1e6))
    assert "mean and standard deviation over the seeds" in " ".join(figure.get_suptitle().split())
    bars = [segment for bars in figure.axes[0].collections for segment in bars.get_segments()]  # type: ignore[attr-defined]
    lengths = [(top - bottom) / 2 for (_, bottom), (_, top) in bars[-3:]]
    assert lengths == pytest.approx(list(home.iteration_ns_std / 1e6))


def test_dollar_signs_in_names_are_text_and_no_formula(tmp_path: Path) -> None:
    values = {"trace": "resnet20-cifar-cpu", "node": "laptop-2gb", "policies": "none", "iterations": 1}
    sweep = make_sweep({**values, "name": "a$x^$b", "sweep": {"grid": {"budget": ["90 MB", "99 MB"]}}}, "a test")
    save_figure(simgpu.run_sweep(sweep).plot("slowdown", "budget"), tmp_path / "named.svg")
    assert "a$x^$b: slowdown over budget" in (tmp_path / "named.svg").read_text(encoding="utf-8")


def test_labels_of_a_figure_do_not_overlap(of_seeds: SweepResult) -> None:
    figure = of_seeds.plot("iteration_ns", "budget")
    figure.canvas.draw()
    (legend,), (ax,) = figure.legends, figure.axes
    assert figure._suptitle is not None  # type: ignore[attr-defined]
    title = figure._suptitle.get_window_extent()  # type: ignore[attr-defined]
    boxes = [title, legend.get_window_extent(), ax.get_window_extent(), ax.xaxis.label.get_window_extent()]
    assert not [(a, b) for a, b in combinations(boxes, 2) if a.overlaps(b)]
    ticks = [tick.get_window_extent() for tick in ax.get_xticklabels() if tick.get_text()]
    assert not [(a, b) for a, b in combinations(ticks, 2) if a.overlaps(b)]
    for box in boxes:
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1


@pytest.mark.parametrize("suffix", slow_except(["svg", "pdf", "png"], "svg"))
def test_figures_contain_text_and_are_the_same_bytes_each_time(
    of_seeds: SweepResult, tmp_path: Path, suffix: str
) -> None:
    files = [tmp_path / f"{number}.{suffix}" for number in range(2)]
    for file in files:
        save_figure(of_seeds.plot("iteration_ns", "budget"), file)
    content = files[0].read_bytes()
    assert content == files[1].read_bytes()
    if suffix == "svg":
        assert b">budget (% of the peak without offloading)</text>" in content
    elif suffix == "pdf":
        assert b"/ToUnicode" in content and b"/Type3" not in content
