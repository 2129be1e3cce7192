"""Measures of several runs as bars and lines: positions, texts and legends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from simgpu.analysis.charts import run_looks
from simgpu.analysis.measure_charts import plot_measures
from simgpu.analysis.panels import AxisInfo, Bar, BarPanel, CurvePoint, LinePanel, Panel, RunCurve, TimePanel
from simgpu.analysis.plots import save_figure

GB = 10**9
THROUGHPUT = AxisInfo("throughput over none", level=1.0)
PEAK = AxisInfo("peak of device memory", "size")
BUDGET, OVERSUBSCRIPTION = AxisInfo("budget", "size"), AxisInfo("oversubscription", "share")
RUNS = ["none", "um", "buddy"]
BARS = BarPanel(
    THROUGHPUT,
    {
        "VGG16": {"none": Bar(1.0), "um": Bar(None, "OOM"), "buddy": Bar(0.5, published=(0.75,))},
        "mean": {"none": Bar(1.0), "um": Bar(None, "refused"), "buddy": Bar(0.5)},
    },
)
ENDS = tuple(CurvePoint(at, Bar(1 + at) if at < 0.3 else Bar(None, "refused")) for at in (0.3, 0.2, 0.0))
SWEEP = LinePanel(
    AxisInfo("time over that of none", level=1.0),
    "hpc-cg",
    OVERSUBSCRIPTION,
    (
        RunCurve("none", level=Bar(None, "OOM")),
        RunCurve("um", ENDS),
        RunCurve("buddy", level=Bar(0.9, published=(0.95,))),
    ),
)


def drawn(*sections: list[Panel], runs: list[str] = RUNS) -> Figure:
    return plot_measures(sections, runs, title="a study")


def boxes_of(ax: Axes) -> list[Rectangle]:
    return [patch for patch in ax.patches if isinstance(patch, Rectangle)]


def texts_of(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_every_group_has_every_run_in_order_and_missing_values_have_a_reason() -> None:
    (ax,) = drawn([BARS]).axes
    assert [box.get_height() for box in boxes_of(ax)] == [1.0, 0.5, 1.0, 0.5]
    middles = [box.get_x() + box.get_width() / 2 for box in boxes_of(ax)]
    width = boxes_of(ax)[0].get_width()
    np.testing.assert_allclose(middles, [-width, width, 1 - width, 1 + width])
    assert texts_of(ax) == ["1.00", "OOM", "0.50", "1.00", "refused", "0.50"]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["VGG16", "mean"]
    assert ax.get_title(loc="left") == "throughput over none"


def test_a_published_number_is_drawn_on_its_bar_and_the_baseline_as_a_line() -> None:
    (ax,) = drawn([BARS]).axes
    (marker,) = (line for line in ax.lines if line.get_marker() == "D" and len(line.get_xdata()))
    buddy = boxes_of(ax)[1]
    assert list(marker.get_ydata()) == [0.75]
    assert list(marker.get_xdata()) == pytest.approx([buddy.get_x() + buddy.get_width() / 2])
    assert any(list(line.get_ydata()) == [1.0, 1.0] for line in ax.lines)


def test_no_text_is_cut_off_or_covers_a_marker(tmp_path: Path) -> None:
    values = [-0.5, 0.9, 0.02, 0.3, 0.31]
    bars = {
        "net": {str(n): Bar(value, published=(0.32,)) for n, value in enumerate(values)} | {"lost": Bar(None, "OOM")}
    }
    figure = drawn([BarPanel(AxisInfo("time added", "share", 0.0), bars)], runs=[*map(str, range(5)), "lost"])
    save_figure(figure, tmp_path / "bars.png")
    (ax,) = figure.axes
    inside = ax.get_window_extent()
    markers = ax.transData.transform([(0.0, 32.0)])[0][1]
    for text in ax.texts:
        box = text.get_window_extent()
        assert inside.y0 - 1 <= box.y0 and box.y1 <= inside.y1 + 1
        assert not box.y0 < markers < box.y1, text.get_text()


def test_shares_and_sizes_are_drawn_in_the_unit_of_the_title() -> None:
    hits = BarPanel(AxisInfo("hits", "share"), {"net": {"buddy": Bar(0.985), "um": Bar(0.0)}})
    peak = BarPanel(PEAK, {"net": {"buddy": Bar(3 * 2**29), "um": Bar(2**30)}})
    left, right = drawn([hits], [peak]).axes
    assert (left.get_title(loc="left"), right.get_title(loc="left")) == ("hits (%)", "peak of device memory (GiB)")
    assert [box.get_height() for box in boxes_of(left)] == pytest.approx([98.5, 0])
    assert (texts_of(left), texts_of(right)) == (["98", "0"], ["1.50", "1.00"])


def test_a_sweep_is_a_line_ending_in_a_cross_and_other_runs_are_dashed() -> None:
    (ax,) = drawn([SWEEP]).axes
    (line,) = (line for line in ax.lines if line.get_linestyle() == "-" and line.get_marker() == "s")
    np.testing.assert_allclose(line.get_xdata(), [0, 20, 30])
    np.testing.assert_array_equal(line.get_ydata(), [1.0, 1.2, np.nan])
    (cross,) = (line for line in ax.lines if line.get_marker() == "x")
    assert (list(cross.get_xdata()), list(cross.get_ydata())) == ([20.0], [1.2])
    (level,) = (line for line in ax.lines if line.get_linestyle() == "--" and len(line.get_xdata()) == 2)
    assert list(level.get_ydata()) == [0.9, 0.9]
    assert ax.get_xlabel() == "oversubscription (%)\nOOM: none"
    low, high = ax.get_xlim()
    assert low < 0 and high > 30, "also what has no value is on the axis"
    assert ax.get_title(loc="left") == "hpc-cg: time over that of none"


def test_the_legend_lists_each_drawn_run_once_in_study_order() -> None:
    expected = ["none", "um", "buddy", "paper", "refused\nat the next point"]
    assert legend_of(drawn([SWEEP], [BARS], runs=["none", "absent", "um", "buddy"])) == expected
    assert legend_of(drawn([BARS])) == ["none", "um", "buddy", "paper"]


def test_budgets_are_in_the_unit_that_makes_them_round() -> None:
    def along(*budgets: int) -> tuple[str, list[str]]:
        curve = RunCurve("um", tuple(CurvePoint(budget, Bar(1.0)) for budget in budgets))
        (ax,) = drawn([LinePanel(PEAK, "net", BUDGET, (curve,))]).axes
        return ax.get_xlabel(), [text.get_text() for text in ax.get_xticklabels()]

    assert along(3 * GB, 6 * GB) == ("budget (GB)", ["3", "6"])
    assert along(3 * 2**30, 6 * 2**30) == ("budget (GiB)", ["3", "6"])


def test_widely_spread_ratios_have_a_logarithmic_axis_and_close_ones_look_close() -> None:
    def axes(*values: float) -> Axes:
        curve = RunCurve("um", tuple(CurvePoint(n / 10, Bar(value)) for n, value in enumerate(values)))
        (ax,) = drawn([SWEEP._replace(curves=(curve,))]).axes
        return ax

    assert axes(1.0, 40.0).get_yscale() == "log"
    close = axes(1.0, 1.0001)
    assert close.get_yscale() == "linear"
    assert close.get_ylim()[1] - close.get_ylim()[0] > 0.04


@pytest.mark.slow
def test_panels_in_a_row_share_their_axis_label() -> None:
    panels: list[Panel] = [SWEEP._replace(name=f"net {number}") for number in range(7)]
    axes = drawn(panels).axes
    assert [ax.get_title(loc="left") for ax in axes] == [f"net {number}" for number in range(7)]
    assert [ax.get_ylabel() for ax in axes] == [
        "time over that of none" if number in (0, 4) else "" for number in range(7)
    ]


@pytest.mark.slow
def test_six_panels_form_two_rows_of_three() -> None:
    axes = drawn([SWEEP._replace(name=f"net {number}") for number in range(6)]).axes
    assert axes[0].get_subplotspec().get_gridspec().get_geometry() == (2, 3)


def test_a_panel_without_any_value_is_drawn(tmp_path: Path) -> None:
    curve = RunCurve("none", (CurvePoint(64, Bar(None, "OOM")),))
    figure = drawn([LinePanel(AxisInfo("samples per second"), "VGG16", AxisInfo("batch", "count"), (curve,))])
    save_figure(figure, tmp_path / "lines.png")
    assert figure.axes[0].get_xlabel() == "batch\nOOM: none"


def test_panels_with_different_units_name_them() -> None:
    def peak(name: str, value: int) -> LinePanel:
        return LinePanel(PEAK, name, BUDGET, (RunCurve("um", (CurvePoint(GB, Bar(value)),)),))

    small, large = drawn([peak("small", 2**20), peak("large", 2**30)]).axes
    assert [ax.get_title(loc="left") for ax in (small, large)] == ["small (MiB)", "large (GiB)"]


def test_many_bars_are_divided_into_rows() -> None:
    runs = [f"run {number}" for number in range(9)]
    groups = {f"net {number}": {run: Bar(float(number + 1)) for run in runs} for number in range(9)}
    first, second = drawn([BarPanel(THROUGHPUT, groups)], runs=runs).axes
    assert [len(boxes_of(ax)) for ax in (first, second)] == [45, 36]
    assert second.get_title(loc="left") == "throughput over none, continued"


def test_drift_is_drawn_over_epochs_with_its_own_legend() -> None:
    lines = {"hpc-cg": tuple(n / 100 for n in range(20)), "hpc-ep": (0.0,) * 20}
    _, time = drawn([BARS], [TimePanel(AxisInfo("overflow", "share"), (0, 8), lines)]).axes
    over, never = time.lines[:2]
    np.testing.assert_allclose(over.get_xdata(), [(n + 0.5) / 10 for n in range(20)])
    np.testing.assert_allclose(over.get_ydata(), range(20))
    assert [text.get_text() for text in time.get_xticklabels()] == ["0", "8"]
    legend = time.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["hpc-cg", "hpc-ep"]
    assert over.get_marker() != never.get_marker()
    one = drawn([TimePanel(AxisInfo("overflow", "share"), (0,), {"hpc-ep": (0.0,) * 10})]).axes[0]
    assert one.get_xlabel() == "share of the iteration"


def test_long_titles_are_broken_before_the_legend() -> None:
    figure = plot_measures([[BARS]], RUNS, title="word " * 60 + "\nfrom somewhere")
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    (title,) = (text for text in figure.texts if text.get_text() == figure.get_suptitle())
    assert title.get_window_extent().x1 < legend.x0


def test_every_run_has_its_own_style() -> None:
    looks = run_looks(map(str, range(24))).values()
    assert len({(look.colour, look.hatch) for look in looks}) == 24
    assert len({(look.colour, look.marker, look.dash) for look in looks}) == 24
    first = list(looks)[:8]
    assert len({look.hatch for look in first}) == len({look.marker for look in first}) == 8, "also without colours"


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_figures_are_reproducible_to_the_byte(suffix: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_figure(drawn([BARS], [SWEEP]), tmp_path / f"{name}.{suffix}")
    assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"two.{suffix}").read_bytes()
