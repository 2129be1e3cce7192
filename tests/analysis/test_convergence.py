"""The figure of a search: its curves, its texts, and its scale with huge costs."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from simgpu.analysis.charts import OFF_SCALE, plot_convergence

HUGE = 4.6e18
WORST, MEAN, BEST = [40.0, 33.0, 30.0, 31.0], [30.0, 24.0, 22.0, 21.0], [25.0, 21.0, 20.0, 20.0]


def words_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_three_curves_are_drawn_over_iterations_from_1() -> None:
    figure = plot_convergence(WORST, MEAN, BEST, unit="ms", title="VGG16", converged_at=3)
    ax = figure.axes[0]
    curves = {line.get_label(): line for line in ax.lines[:3]}
    assert list(curves) == ["worst", "average", "best"]
    for values, line in zip((WORST, MEAN, BEST), curves.values(), strict=True):
        assert line.get_xdata().tolist() == [1, 2, 3, 4]
        assert line.get_ydata().tolist() == values
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["worst", "average", "best"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("search iteration", "step time (ms)")
    assert ax.get_title(loc="left") == "VGG16"
    assert words_of(figure) == ["best 20 ms, iteration 3"]


def test_ordinary_curves_are_completely_inside_the_axes() -> None:
    low, high = plot_convergence(WORST, MEAN, BEST, unit="ms").axes[0].get_ylim()
    assert low < min(BEST) < max(WORST) < high < 2 * max(WORST)


def test_huge_costs_are_noted_and_do_not_change_the_scale() -> None:
    plain = plot_convergence(WORST, MEAN, BEST, unit="ms").axes[0]
    worst, mean = [40.0, 33.0, HUGE, 31.0], [30.0, 24.0, OFF_SCALE * 20 + 1, 21.0]
    figure = plot_convergence(worst, mean, BEST, unit="ms")
    assert figure.axes[0].get_ylim() == plain.get_ylim()
    assert words_of(figure) == ["off the scale: worst and average in iteration 3"]


@pytest.mark.parametrize(
    ("worst", "words"),
    [
        ([HUGE] * 4, "worst throughout"),
        ([HUGE, HUGE, 30, 31], "worst in iterations 1 to 2"),
        ([HUGE, 30, HUGE, 31], "worst in 2 iterations, last in 3"),
        ([40, 30, 20, OFF_SCALE * 20], None),
    ],
)
def test_iterations_off_the_scale_are_listed(worst: list[float], words: str | None) -> None:
    figure = plot_convergence(worst, MEAN, BEST, unit="ms")
    assert words_of(figure) == ([] if words is None else [f"off the scale: {words}"])


def test_bars_mark_curves_off_the_scale() -> None:
    figure = plot_convergence([HUGE, 30, HUGE, HUGE], MEAN, BEST, unit="ms")
    (bars,) = figure.axes[0].collections
    spans = [(path.vertices[:, 0].min(), path.vertices[:, 0].max()) for path in bars.get_paths()]
    assert spans == [(0.5, 1.5), (2.5, 4.5)]


def test_iterations_without_a_number_are_gaps() -> None:
    figure = plot_convergence([np.nan, 33, 30, 31], [np.nan, 24, 22, 21], [HUGE, 21, 20, 20], unit="ms")
    assert np.isnan(figure.axes[0].lines[0].get_ydata()[0])
    assert words_of(figure) == ["off the scale: best in iteration 1"]


def test_a_strip_shows_how_many_particles_fit() -> None:
    figure = plot_convergence(WORST, MEAN, BEST, unit="ms", fitting=[0.25, 0.5, 1, 1])
    curves, strip = figure.axes
    figure.canvas.draw()
    assert curves.get_xlim() == strip.get_xlim()
    assert strip.get_ylim() == (0, 1)
    assert [text.get_text() for text in strip.get_yticklabels()][-1] == "100%"
    heights = strip.collections[0].get_paths()[0].vertices[:, 1]
    assert set(heights.tolist()) == {0, 0.25, 0.5, 1}
    assert strip.get_xlabel() == "search iteration" and not curves.get_xlabel()


def test_there_is_no_strip_if_all_particles_fit() -> None:
    assert len(plot_convergence(WORST, MEAN, BEST, unit="ms", fitting=[1, 1, 1, 1]).axes) == 1


def test_no_labels_overlap() -> None:
    every = [HUGE, 24, HUGE, 21]
    figure = plot_convergence([HUGE] * 4, every, [HUGE, 21, 20, 20], unit="ms", title="all off", converged_at=3)
    figure.canvas.draw()
    ax = figure.axes[0]
    texts: list[Text] = [*ax.texts, ax.title, ax._left_title, *ax.get_legend().get_texts(), ax.xaxis.label]
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    assert len(boxes) == 7
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1 for box in boxes)


def test_a_search_of_one_iteration_or_without_progress_can_be_drawn() -> None:
    for count in (1, 5):
        figure = plot_convergence([7] * count, [7] * count, [7] * count, unit="ms", converged_at=1)
        figure.canvas.draw()
        low, high = figure.axes[0].get_ylim()
        assert low < 7 < high


def test_curves_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"curves of \[4, 3, 4\] points, least 20; give three of one length"):
        plot_convergence(WORST, MEAN[:3], BEST, unit="ms")
    for nothing in ([], [0.0], [np.nan]):
        with pytest.raises(ValueError, match="of costs above 0"):
            plot_convergence(nothing, nothing, nothing, unit="ms")
