"""Pictures of a validation: bars as long as the numbers, texts that stay in their place, streams on one time axis."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from simgpu.analysis.plots import save_figure
from simgpu.timeline.model import SpanKind
from simgpu.validation.comparison import compare_recording
from simgpu.validation.figures import measured_timeline, plot_run, plot_validation
from simgpu.validation.measured import Case, Method
from simgpu.validation.outcome import Validation
from tests.validation.example_recording import MACHINE, SETTINGS, example_case, recording_of


@pytest.fixture(scope="module")
def case() -> Case:
    return example_case()


@pytest.fixture(scope="module")
def example(case: Case) -> Validation:
    """Every run by 20% off in time, the save_on_cpu run absent in a second case."""
    runs = {
        method: run if method is Method.PLAIN else replace(run, step_ns=(run.step_ns[0] * 5 // 4,))
        for method, run in case.runs.items()
    }
    fewer = {method: run for method, run in runs.items() if method is not Method.SAVE_ON_CPU}
    second = replace(case, batch=16, runs=fewer, absent={Method.SAVE_ON_CPU: "out of memory"})
    return compare_recording(recording_of(replace(case, runs=runs), second))


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def test_bars_have_the_lengths_and_texts_the_errors_of_runs(example: Validation) -> None:
    figure = plot_validation(example)
    left, right, *_ = figure.axes
    runs = example.cases[0].runs
    widths = [bar.get_width() for bar in left.patches]
    expected = [ns / 10**6 for run in runs for ns in (run.measured.step_ns, run.simulated.step_ns)]
    assert widths == pytest.approx(expected)
    assert texts(left) == ["fitted", "-20.0%", "-20.0%", "-20.0%"]
    assert texts(right) == ["equal"] * 4
    assert left.get_title("left") == "example-b8" and left.get_title("right") == "step time (ms)"


def test_a_method_without_a_run_is_labelled_in_its_row(example: Validation) -> None:
    left = plot_validation(example).axes[2]
    assert [label.get_text() for label in left.get_yticklabels()] == list(map(str, SETTINGS))
    assert texts(left) == ["fitted", "-20.0%", "not run", "-20.0%"]


def test_an_axis_without_runs_has_no_ticks(case: Case) -> None:
    fewer = {method: run for method, run in case.runs.items() if method is not Method.CHECKPOINT}
    recording = recording_of(replace(case, runs=fewer, absent={Method.CHECKPOINT: "out of memory"}))
    figure = plot_validation(compare_recording(recording, methods=["checkpoint"]))
    assert [(texts(ax), list(ax.get_xticks())) for ax in figure.axes] == [(["not run"], [])] * 2


def test_an_error_above_the_target_is_red(example: Validation) -> None:
    colours = {text.get_text(): text.get_color() for text in plot_validation(example).axes[0].texts}
    assert colours == {"fitted": "black", "-20.0%": "#BB4444"}


def test_texts_stay_within_their_panels_and_off_each_other(example: Validation) -> None:
    figure = plot_validation(example)
    figure.draw_without_rendering()
    for ax in figure.axes:
        boxes = [text.get_window_extent() for text in ax.texts if isinstance(text, Annotation)]
        panel = ax.get_window_extent()
        assert all(panel.x0 <= box.x0 and box.x1 <= panel.x1 for box in boxes)
        assert not any(one.overlaps(other) for at, one in enumerate(boxes) for other in boxes[:at])


def test_a_cpu_recording_is_labelled_in_the_title(case: Case) -> None:
    recording = recording_of(case, machine=replace(MACHINE, kind="cpu"))
    title = plot_validation(compare_recording(recording))._suptitle
    assert title is not None and "measured on a CPU" in title.get_text()


def test_a_measured_timeline_has_measured_times_and_simulated_names(example: Validation) -> None:
    run = example.cases[0][Method.CHECKPOINT]
    assert run.counterpart is not None and run.counterpart.result is not None
    timeline = measured_timeline(run.run.spans, run.counterpart.result)
    start, _ = run.counterpart.result.timeline.window(-1)
    kinds = (SpanKind.COMPUTE, SpanKind.RECOMPUTE)
    expected = [
        (span.name, span.kind, span.start_ns - start)
        for span in run.counterpart.result.timeline
        if span.kind in kinds and span.start_ns >= start
    ]
    assert [(span.name, span.kind, span.start_ns) for span in timeline if span.kind in kinds] == expected
    assert SpanKind.RECOMPUTE in {kind for _, kind, _ in expected}


def test_an_unmatched_operator_keeps_its_measured_name(example: Validation) -> None:
    run = example.cases[0][Method.PLAIN]
    assert run.counterpart is not None and run.counterpart.result is not None
    strange = run.run.spans[0]._replace(op="aten::strange", name="strange_kernel")
    timeline = measured_timeline((strange, *run.run.spans[1:]), run.counterpart.result)
    assert [span.name for span in timeline][:2] == ["strange_kernel", "F1a"]


def drawn(ax: Axes) -> int:
    return sum(len(each.get_paths()) for each in ax.collections if isinstance(each, PolyCollection))


def test_both_timelines_have_one_time_axis_and_one_legend(example: Validation) -> None:
    figure = plot_run(example.cases[0][Method.ASYNC_OFFLOAD])
    upper, lower = figure.axes
    assert upper.get_xlim() == lower.get_xlim()
    assert drawn(upper) and drawn(lower)
    rows = [[label.get_text() for label in ax.get_yticklabels()] for ax in (upper, lower)]
    assert rows[0] == rows[1] == ["compute", "D2H copies", "H2D copies"]
    assert upper.get_legend() is None and lower.get_legend() is not None


@pytest.mark.slow
def test_the_first_divergence_is_marked_and_described(case: Case) -> None:
    run = case.runs[Method.CHECKPOINT]
    strange = run.spans[3]._replace(op="aten::strange")
    spans = (*run.spans[:3], strange, *run.spans[4:])
    example = compare_recording(
        recording_of(replace(case, runs={**case.runs, Method.CHECKPOINT: replace(run, spans=spans)}))
    )
    same, parted = (plot_run(example.cases[0][method]) for method in (Method.PLAIN, Method.CHECKPOINT))
    at = strange.start_ns / 10**6
    for figure, expected in ((same, []), (parted, [at])):
        for ax in figure.axes:
            assert [line.get_xdata()[0] for line in ax.lines if line.get_color() == "#BB4444"] == expected
    assert "measured aten::strange" in parted.get_supxlabel()


def test_each_axes_marks_the_start_of_its_own_event(case: Case) -> None:
    run = case.runs[Method.ASYNC_OFFLOAD]
    first, later = next(span for span in run.spans if span.stream == "d2h"), run.step_ns[0] // 10
    late = first._replace(start_ns=first.start_ns + later, end_ns=first.end_ns + later)
    spans = tuple(late if span is first else span for span in run.spans)
    changed = replace(case, runs={**case.runs, Method.ASYNC_OFFLOAD: replace(run, spans=spans)})
    figure = plot_run(compare_recording(recording_of(changed)).cases[0][Method.ASYNC_OFFLOAD])
    marked = [line.get_xdata()[0] for ax in figure.axes for line in ax.lines if line.get_color() == "#BB4444"]
    assert marked == [late.start_ns / 10**6, first.start_ns / 10**6]


def test_a_run_without_a_timeline_cannot_be_drawn(case: Case) -> None:
    bare = replace(case, runs={Method.PLAIN: replace(case.runs[Method.PLAIN], spans=())})
    with pytest.raises(ValueError, match="the measured or the simulated timeline is missing"):
        plot_run(compare_recording(recording_of(bare)).runs[0])


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_figures_are_deterministic(example: Validation, tmp_path: Path, suffix: str) -> None:
    for name in ("one", "two"):
        save_figure(plot_validation(example), tmp_path / f"{name}.{suffix}")
    assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"two.{suffix}").read_bytes()


def test_a_validation_plots_itself(example: Validation) -> None:
    assert isinstance(plot_validation(example), Figure)
