"""Figures: their texts, no overlaps, and drawing without much cost or global state."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.text import Text

from simgpu.analysis.plots import plot_memory, plot_run, plot_timeline, save_figure
from simgpu.errors import InputError
from simgpu.timeline.model import SpanKind
from simgpu.trace.model import Phase
from tests.sets import slow_except
from tests.timeline.hand_made import curve_of, layered_run, timeline_of

K = SpanKind
GIB = 2**30


def legend_of(figure: Figure, axes: int = 0) -> list[str]:
    return [text.get_text() for text in figure.axes[axes].get_legend().get_texts()]


def words_of(figure: Figure, axes: int = 0) -> list[str]:
    return [text.get_text() for text in figure.axes[axes].texts]


def test_rows_are_the_active_streams_in_a_fixed_order() -> None:
    figure = plot_timeline(layered_run())
    labels = [label.get_text().split("\n")[0] for label in figure.axes[0].get_yticklabels()]
    assert labels == ["compute", "D2H copies", "H2D copies"]
    low, high = figure.axes[0].get_ylim()
    assert low > high, "compute stands on top"


def test_the_legend_lists_exactly_the_drawn_styles() -> None:
    assert legend_of(plot_timeline(layered_run())) == [
        "compute",
        "D2H copy",
        "H2D copy",
        "stalled on D2H",
        "stalled on H2D",
        "copy stream idle",
    ]
    phases = {"a": Phase.FORWARD, "b": Phase.BACKWARD}
    spans = [("compute", K.COMPUTE, "a", 0, 5), ("compute", K.COMPUTE, "b", 5, 9)]
    assert legend_of(plot_timeline(timeline_of(spans, [9]), phases=phases)) == ["forward", "backward"]


def test_the_time_axis_starts_at_the_iteration_in_milliseconds() -> None:
    timeline = layered_run()
    start, end = timeline.window(1)
    ax = plot_timeline(timeline, iteration=1).axes[0]
    assert ax.get_xlim() == (0, (end - start) / 1e6)
    assert ax.get_xlabel() == "time (ms)"
    assert ax.get_title(loc="left") == "iteration 2 of 2, 2.87 s"


@pytest.mark.parametrize(("length", "label"), [(50, "time (µs)"), (10**8, "time (ms)"), (10**11, "time (s)")])
def test_very_short_and_very_long_iterations_get_their_own_unit(length: int, label: str) -> None:
    timeline = timeline_of([("compute", K.COMPUTE, "a", 0, length)], [length])
    assert plot_timeline(timeline).axes[0].get_xlabel() == label


@pytest.mark.slow
def test_a_plot_of_all_iterations_marks_their_ends() -> None:
    figure = plot_timeline(layered_run(), iteration=None)
    ends = layered_run().iteration_ends_ns
    assert [line.get_xdata()[0] for line in figure.axes[0].lines] == [ends[0] / 1e6]
    assert figure.axes[0].get_xlim()[1] == ends[1] / 1e6


def test_the_memory_plot_labels_peak_budget_and_padding() -> None:
    figure = plot_memory(layered_run())
    peak = layered_run().memory("device").live.max() / GIB
    assert words_of(figure) == [f"peak {peak:.4g} GiB at 2831 ms"]
    assert legend_of(figure) == ["live blocks", "padding", "budget 2 GiB"]
    assert figure.axes[0].get_ylabel() == "device memory (GiB)"
    assert any(set(line.get_ydata()) == {2.0} for line in figure.axes[0].lines)


def test_a_budget_far_above_the_curve_is_labelled_and_does_not_change_the_scale() -> None:
    figure = plot_memory(layered_run(), budget=80 * GIB)
    assert legend_of(figure)[-1] == "budget 80 GiB\n(above the axis)"
    assert figure.axes[0].get_ylim()[1] < 2


def test_unlimited_memory_without_padding_has_neither_line_nor_shade() -> None:
    timeline = timeline_of([("compute", K.COMPUTE, "a", 0, 10)], [10], device=curve_of([(0, 3 * 2**20, 3 * 2**20)]))
    figure = plot_memory(timeline)
    assert legend_of(figure) == ["live blocks"]
    assert figure.axes[0].get_ylabel() == "device memory (MiB)"
    assert words_of(figure) == ["peak 3 MiB at 0.0 µs"]


@pytest.mark.parametrize("draw", [plot_timeline, plot_memory, plot_run])
def test_an_empty_run_of_no_length_can_be_drawn(draw, tmp_path: Path) -> None:
    save_figure(draw(timeline_of([], [0])), tmp_path / "empty.png")
    assert (tmp_path / "empty.png").stat().st_size > 0


@pytest.mark.parametrize("draw", [plot_timeline, plot_memory])
def test_plots_can_be_drawn_on_axes_of_the_caller(draw) -> None:
    mine = Figure()
    ax = mine.subplots()
    assert draw(layered_run(), ax=ax, title="mine") is mine
    assert ax.get_title(loc="left") == "mine"


@pytest.mark.parametrize("budget", slow_except([None, 1_360_000_000, 80 * GIB], 1_360_000_000))
@pytest.mark.parametrize("iteration", slow_except([0, None], None))
def test_no_labels_overlap_or_leave_the_figure(budget: int | None, iteration: int | None) -> None:
    figure = plot_run(layered_run(), budget=budget, iteration=iteration)
    figure.canvas.draw()
    boxes = []
    for ax in figure.axes:
        texts = [*ax.texts, *ax.get_legend().get_texts(), ax.yaxis.label, ax.xaxis.label, ax._left_title]
        texts += [tick for tick in (*ax.get_yticklabels(), *ax.get_xticklabels()) if tick.get_visible()]
        boxes += [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]
        legend = ax.get_legend().get_window_extent()
        assert legend.x0 >= ax.get_window_extent().x1, "the legend stands next to the data"
    frame = figure.bbox
    for text, box in boxes:
        assert box.x0 >= 0, text
        assert box.x1 <= frame.x1, text
        assert box.y0 >= 0, text
        assert box.y1 <= frame.y1, text
    labels = [(text, box) for text, box in boxes if box.width and box.height]
    for (one, a), (other, b) in combinations(labels, 2):
        assert not a.overlaps(b), f"{one!r} overlaps {other!r}"


def test_the_peak_is_labelled_above_the_budget_line() -> None:
    figure = plot_memory(layered_run())
    figure.canvas.draw()
    ax = figure.axes[0]
    words = Text.get_window_extent(ax.texts[0])  # of the words alone, without the line to the dot
    line = ax.transData.transform((0, 2.0))[1]
    assert line < words.y0
    assert words.y1 < ax.get_window_extent().y1


def test_both_panels_share_one_time_axis() -> None:
    upper, lower = plot_run(layered_run()).axes
    assert upper.get_xlim() == lower.get_xlim()
    assert upper.get_shared_x_axes().joined(upper, lower)


@pytest.mark.slow
def test_ten_thousand_kernels_are_drawn_as_few_shapes() -> None:
    spans = [("compute", K.COMPUTE, f"k{i}", 100 * i, 100 * i + 99) for i in range(10_000)]
    figure = plot_timeline(timeline_of(spans, [10**6]))
    shapes = [c for c in figure.axes[0].collections if isinstance(c, PolyCollection)]
    assert len(shapes) == 1
    assert sum(len(shape.get_paths()) for shape in shapes) <= 2000


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_figure_is_written_atomically_and_reproducibly(suffix: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_figure(plot_run(layered_run()), tmp_path / f"{name}.{suffix}")
    assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"two.{suffix}").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"one.{suffix}", f"two.{suffix}"]


def test_a_suffix_that_is_not_an_image_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'jiff' is not a format of figures"):
        save_figure(plot_timeline(layered_run()), tmp_path / "run.jiff")
    with pytest.raises(InputError, match="cannot be written"):
        save_figure(plot_timeline(layered_run()), tmp_path / "absent" / "run.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("draw", [plot_timeline, plot_memory, plot_run])
def test_a_saved_figure_has_the_bytes_that_matplotlib_writes(draw: Callable[..., Figure], tmp_path: Path) -> None:
    """`save_figure` arranges a figure once, and leaves it as matplotlib does: a second save may arrange it anew."""
    ours, theirs, expected = draw(layered_run()), draw(layered_run()), tmp_path / "expected.png"
    for number in range(2):
        theirs.savefig(expected, dpi=150)
        save_figure(ours, tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").read_bytes() == expected.read_bytes()
    assert ours.get_dpi() == theirs.get_dpi()
    assert type(ours.get_layout_engine()) is type(theirs.get_layout_engine())


def test_a_figure_is_displayed_in_a_notebook() -> None:
    assert plot_timeline(layered_run())._repr_png_().startswith(b"\x89PNG")


@pytest.mark.slow
def test_drawing_does_not_import_pyplot_and_metrics_do_not_import_matplotlib() -> None:
    script = (
        "import sys, simgpu, simgpu.analysis.metrics, simgpu.analysis.tables, simgpu.timeline.export;"
        "assert not {'matplotlib', 'pandas'} & set(sys.modules);"
        "import simgpu.analysis.plots;"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", script], check=True, cwd=root)
