"""Charts of several runs: bars as long as their parts, lines that end where memory does, and what the legend says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from simgpu.analysis.breakdown import PARTS
from simgpu.analysis.charts import Line, Stack, plot_breakdowns, plot_throughputs
from simgpu.analysis.plots import save_figure

MS = 10**6
STACKS = {
    "VGG16, batch 64": [
        Stack("none", None, "out of memory"),
        Stack("vDNN", {"computation": 30 * MS, "overlap": 20 * MS, "swapping": 150 * MS}),
        Stack("CSWAP", {"computation": 25 * MS, "overlap": 25 * MS, "swapping": 46 * MS, "codec": 4 * MS}),
    ],
    "plain": [Stack("vDNN", {"computation": MS})],
}
LINES = {
    "VGG16": [
        Line("none", {128: None, 64: 900.0, 32: 800.0}),
        Line("vDNN", {32: 400.0, 64: 500.0, 128: 600.0}),
        Line("home", {32: None, 64: None, 128: None}, "refused"),
    ],
    "AlexNet": [Line("none", {100: 1000.0, 200: 1100.0}), Line("vDNN", {100: 1000.0, 200: None})],
}


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def bars_of(ax: Axes, row: int) -> list[tuple[float, float]]:
    """Start and length of the parts of a row, in the order in which they were drawn."""
    boxes = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    middles = [(box, box.get_y() + box.get_height() / 2) for box in boxes]
    return [(box.get_x(), box.get_width()) for box, middle in middles if middle == pytest.approx(row)]


def test_parts_stand_end_to_end_in_their_order_and_in_milliseconds() -> None:
    ax, _ = plot_breakdowns(STACKS, title="a study").axes
    assert bars_of(ax, 0) == []
    assert bars_of(ax, 1) == [(0, 30), (30, 20), (50, 150)]
    assert bars_of(ax, 2) == [(0, 25), (25, 25), (50, 46), (96, 4)]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["none", "vDNN", "CSWAP"]
    assert ax.get_xlabel() == "iteration time (ms)"
    low, high = ax.get_ylim()
    assert low > high, "the first run stands on top"


def test_shares_are_written_where_there_is_room_and_why_a_run_has_no_bar() -> None:
    ax, other = plot_breakdowns(STACKS, title="a study").axes
    told = [text.get_text() for text in ax.texts]
    assert told == ["out of memory", "15%", "10%", "75%", "200 ms", "25%", "25%", "46%", "100 ms"]
    assert [text.get_text() for text in other.texts] == ["100%", "1 ms"]


def test_the_legend_names_the_parts_that_are_drawn() -> None:
    assert legend_of(plot_breakdowns(STACKS, title="")) == ["computation", "overlap", "swapping", "codec"]
    every = {"all": [Stack("run", dict.fromkeys(PARTS, 1))]}
    drawn = [*PARTS[:-1], "waits for another stream"]
    assert legend_of(plot_breakdowns(every, title="")) == drawn


def test_a_study_of_which_nothing_fits_can_be_drawn(tmp_path: Path) -> None:
    nothing = {"VGG16": [Stack("none", None, "out of memory")]}
    save_figure(plot_breakdowns(nothing, title="none"), tmp_path / "bars.png")
    save_figure(plot_throughputs({"VGG16": [Line("none", {1: None})]}, title="none"), tmp_path / "lines.png")
    assert all((tmp_path / name).stat().st_size for name in ("bars.png", "lines.png"))


def test_a_line_goes_by_batch_and_ends_in_a_cross_where_memory_does() -> None:
    vgg, alexnet = (ax for ax in plot_throughputs(LINES, title="a study").axes if ax.get_visible())
    plain, cross, offloading, refused = vgg.lines
    assert list(plain.get_xdata()) == [32, 64, 128]
    np.testing.assert_array_equal(plain.get_ydata(), [800, 900, np.nan])
    assert (list(cross.get_xdata()), list(cross.get_ydata())) == ([64], [900])
    assert cross.get_marker() == "x"
    assert list(offloading.get_ydata()) == [400, 500, 600]
    assert np.isnan(refused.get_ydata()).all()
    assert [list(line.get_xdata()) for line in alexnet.lines] == [[100, 200], [100, 200], [100]]


def test_a_run_looks_the_same_in_every_panel_and_no_two_runs_look_alike() -> None:
    vgg, alexnet = (ax for ax in plot_throughputs(LINES, title="").axes if ax.get_visible())
    assert vgg.lines[0].get_color() == alexnet.lines[0].get_color()
    many = {"VGG16": [Line(str(number), {1: 1.0}) for number in range(20)]}
    (ax,) = plot_throughputs(many, title="").axes
    assert len({(line.get_color(), line.get_marker(), line.get_linestyle()) for line in ax.lines}) == 20


def test_the_legend_says_which_runs_are_nowhere_and_what_a_cross_means() -> None:
    expected = ["none", "vDNN", "home\n(refused)", "out of memory\nat the next batch"]
    assert legend_of(plot_throughputs(LINES, title="")) == expected
    fits = {"VGG16": [Line("vDNN", {1: 1.0, 2: 2.0})]}
    assert legend_of(plot_throughputs(fits, title="")) == ["vDNN"]


def test_six_networks_stand_in_two_rows_of_three() -> None:
    panels = {str(number): LINES["VGG16"] for number in range(6)}
    figure = plot_throughputs(panels, title="six")
    assert figure.axes[0].get_subplotspec().get_gridspec().get_geometry() == (2, 3)
    assert [ax.get_title(loc="left") for ax in figure.axes] == list(panels)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_same_numbers_give_the_same_bytes(suffix: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_figure(plot_breakdowns(STACKS, title="bars"), tmp_path / f"{name}.{suffix}")
        save_figure(plot_throughputs(LINES, title="lines"), tmp_path / f"{name}-lines.{suffix}")
    assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"two.{suffix}").read_bytes()
    assert (tmp_path / f"one-lines.{suffix}").read_bytes() == (tmp_path / f"two-lines.{suffix}").read_bytes()
