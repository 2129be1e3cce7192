"""The figure of a training's decisions: no overlap, even with few blocks."""

import pytest

from simgpu.analysis.charts import plot_decisions


@pytest.mark.parametrize("blocks", [1, 4, 12])
def test_the_legend_does_not_touch_the_axis(blocks):
    decisions = {f"conv{number}": ["", "zvc", None] for number in range(blocks)}
    figure = plot_decisions(decisions, [0, 10, 20], title="cswap")
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert not legend.overlaps(figure.axes[1].xaxis.label.get_window_extent())
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["compressed (zvc)", "uncompressed"]
