"""Drawings of checks show simulated and published values, and are readable without colours."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from simgpu.papers.checks.results import bars, cells, lines
from simgpu.papers.page.drawings import drawn
from simgpu.papers.page.svg import inline_svg

NETWORKS = ("AlexNet", "VGG16", "ResNet-152", "SqueezeNet")
BARS = bars(
    "ratio",
    {name: {"ZVC": 2.0 + at, "zlib": None if at == 1 else 2.5 + at} for at, name in enumerate(NETWORKS)},
    {"VGG16": {"ZVC": 2.6}, "mean": {"zlib": 2.76}},
)
LINES = lines(
    "time (ms)",
    "grid",
    {f"block {size}": [(2.0**at, 150 / (1 + at)) for at in range(12)] for size in (64, 128)},
    {"block 64": [(197, 44)], "expert": [(1024, 178)]},
    log=True,
)
CELLS = cells(["MAX1", "ReLU1"], ["0", "10", "20"], [["ZVC", "ZVC", ""], ["none", "ZVC", "RLE"]], "epoch", "layer")


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def heights(figure: Figure) -> list[float]:
    return [patch.get_height() for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]


@pytest.mark.slow
def test_bars_show_simulated_values_and_marks_published_ones() -> None:
    figure = drawn(BARS)
    assert heights(figure) == [2.0, 2.5, 3.0, 4.0, 4.5, 5.0, 5.5]
    marks = [line.get_ydata()[0] for line in figure.axes[0].lines if line.get_marker() == "D" and len(line.get_ydata())]
    assert marks == [2.6, 2.76]
    assert legend(figure) == ["ZVC", "zlib", "paper"]
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == [*NETWORKS, "mean"]


def test_shares_are_shown_in_percent() -> None:
    figure = drawn(bars("gain", {"VGG16": {"ZVC": 0.32}}, share=True))
    assert heights(figure) == pytest.approx([32.0])
    assert figure.axes[0].get_title(loc="left") == "gain (%)"


def test_lines_have_their_points_and_the_published_ones_their_markers() -> None:
    ax = drawn(LINES).axes[0]
    points = {line.get_marker(): (list(line.get_xdata()), list(line.get_ydata())) for line in ax.lines[2:]}
    assert points == {"o": ([197], [44]), "^": ([1024], [178])}
    assert list(ax.lines[0].get_xdata()) == [2.0**at for at in range(12)]
    assert ax.get_xscale() == "log"
    assert legend(drawn(LINES)) == ["block 64", "block 128", "expert, paper", "paper"]


def test_points_of_a_line_are_joined_in_their_order_along_the_axis() -> None:
    ax = drawn(lines("y", "x", {"a": [(3, 1.0), (1, 5.0), (2, 4.0)]})).axes[0]
    assert list(ax.lines[0].get_xdata()) == [1, 2, 3]
    assert list(ax.lines[0].get_ydata()) == [5.0, 4.0, 1.0]


def test_an_axis_begins_at_zero_unless_all_values_are_far_from_it() -> None:
    assert drawn(lines("y", "x", {"a": [(1, 2.0), (2, 9.0)]})).axes[0].get_ylim()[0] == 0
    assert drawn(lines("y", "x", {"a": [(1, 95.0), (2, 99.0)]})).axes[0].get_ylim()[0] > 90
    assert drawn(lines("y", "x", {"a": [(1, 0.1), (2, 99.0)]})).axes[0].get_yscale() == "log"


def test_a_heat_map_cell_has_a_colour_a_label_or_stays_empty() -> None:
    figure = drawn(CELLS)
    ax = figure.axes[0]
    boxes = [
        (patch.get_x() + 0.5, patch.get_y() + 0.5, patch.get_width(), patch.get_facecolor()) for patch in ax.patches
    ]
    assert [box[:3] for box in boxes] == [(0, 0, 2), (0, 1, 1), (1, 1, 1), (2, 1, 1)]
    zvc, none, zvc_again, rle = (box[3] for box in boxes)
    assert zvc == zvc_again and len({zvc, none, rle}) == 3
    assert [text.get_text() for text in ax.texts] == ["ZVC", "ZVC", "none", "ZVC", "RLE"]
    assert legend(figure) == ["ZVC", "none", "RLE"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("epoch", "layer")


def test_labels_of_a_wide_heat_map_do_not_overlap() -> None:
    figure = drawn(cells(["ReLU1"], [str(epoch) for epoch in range(50)], [["ZVC"] * 50], "epoch"))
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


@pytest.mark.parametrize("drawing", [BARS, LINES, CELLS], ids=["bars", "lines", "cells"])
def test_elements_of_a_drawing_do_not_overlap_its_values(drawing: dict[str, Any]) -> None:
    """The legend is next to the axes, and all of the figure is within its bounds."""
    figure = drawn(drawing)
    figure.draw_without_rendering()
    assert figure.legends[0].get_window_extent().x0 >= figure.axes[0].get_window_extent().x1
    assert figure.legends[0].get_window_extent().x1 <= figure.bbox.x1 + 1


NAMES = st.text(st.characters(categories=["L", "N"], max_codepoint=0x17F), min_size=1, max_size=24)
NUMBERS = st.floats(0.0, 1e6)


@pytest.mark.slow
@settings(deadline=None, max_examples=10)
@given(st.dictionaries(NAMES, st.dictionaries(NAMES, NUMBERS, min_size=1, max_size=4), min_size=1, max_size=6))
def test_any_numbers_can_be_drawn(groups: dict[str, dict[str, float]]) -> None:
    figure = drawn(bars("measure", groups, groups))
    every = {label for points in groups.values() for label in points}
    assert sum(map(len, groups.values())) == len(heights(figure)) or len(groups) * len(every) > 20
    assert inline_svg(figure, "a-").text.startswith("<svg ")


@pytest.mark.slow
@pytest.mark.parametrize("drawing", [BARS, LINES, CELLS], ids=["bars", "lines", "cells"])
def test_the_same_drawing_gives_the_same_element(drawing: dict[str, Any]) -> None:
    once, again = inline_svg(drawn(drawing), "f-"), inline_svg(drawn(drawing), "f-")
    assert once == again
    assert "<style" not in once.text and "<!--" not in once.text
    other = inline_svg(drawn(drawing), "g-")
    assert other.text == once.text.replace('"f-', '"g-').replace("#f-", "#g-")


def test_hatching_is_shared_and_a_halo_is_left_to_the_page() -> None:
    text, patterns = inline_svg(drawn(BARS), "f-")
    assert len(patterns) == 1
    assert all(f"url(#{id_})" in text for id_ in patterns)
    assert "<pattern" not in text
    assert ">2.76<" not in text and ">5.50<" in text
    assert 'id="f-halo' in text
