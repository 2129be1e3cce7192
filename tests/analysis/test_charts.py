"""Breakdown charts: bars as long as their parts, and their legend."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from simgpu.analysis.breakdown import PARTS
from simgpu.analysis.charts import Stack, plot_breakdowns
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


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def bars_of(ax: Axes, row: int) -> list[tuple[float, float]]:
    """Start and length of the parts of a row, in the order in which they were drawn."""
    boxes = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    middles = [(box, box.get_y() + box.get_height() / 2) for box in boxes]
    return [(box.get_x(), box.get_width()) for box, middle in middles if middle == pytest.approx(row)]


def test_parts_are_stacked_in_order_in_milliseconds() -> None:
    ax, _ = plot_breakdowns(STACKS, title="a study").axes
    assert bars_of(ax, 0) == []
    assert bars_of(ax, 1) == [(0, 30), (30, 20), (50, 150)]
    assert bars_of(ax, 2) == [(0, 25), (25, 25), (50, 46), (96, 4)]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["none", "vDNN", "CSWAP"]
    assert ax.get_xlabel() == "step time (ms)"
    low, high = ax.get_ylim()
    assert low > high, "the first run stands on top"


def test_shares_are_written_if_they_fit_and_a_missing_bar_has_a_reason() -> None:
    ax, other = plot_breakdowns(STACKS, title="a study").axes
    message = [text.get_text() for text in ax.texts]
    assert message == ["out of memory", "15%", "10%", "75%", "200 ms", "25%", "25%", "46%", "100 ms"]
    assert [text.get_text() for text in other.texts] == ["100%", "1 ms"]


def test_the_legend_names_the_parts_that_are_drawn() -> None:
    assert legend_of(plot_breakdowns(STACKS, title="")) == ["computation", "overlap", "swapping", "codec"]
    every = {"all": [Stack("run", dict.fromkeys(PARTS, 1))]}
    drawn = [*PARTS[:-1], "stalled on another stream"]
    assert legend_of(plot_breakdowns(every, title="")) == drawn


def test_a_study_without_fitting_runs_can_be_drawn(tmp_path: Path) -> None:
    nothing = {"VGG16": [Stack("none", None, "out of memory")]}
    save_figure(plot_breakdowns(nothing, title="none"), tmp_path / "bars.png")
    assert (tmp_path / "bars.png").stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_figures_are_reproducible_to_the_byte(suffix: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_figure(plot_breakdowns(STACKS, title="bars"), tmp_path / f"{name}.{suffix}")
    assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"two.{suffix}").read_bytes()
