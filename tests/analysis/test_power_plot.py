"""The power figure: its texts, and the coloured area, which equals the stated energy."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from simgpu.analysis.plots import plot_power, save_figure
from simgpu.analysis.power import measure_power, power_curve
from simgpu.graph.work import KernelWork, WorkDone
from simgpu.hardware.spec import GpuSpec, PowerSpec
from simgpu.timeline.model import SpanKind, Timeline
from tests.timeline.hand_made import layered_run, timeline_of

#: 250 W, 50 W idle, 150 W of arithmetic at a thousand operations a nanosecond; 100 pJ and 80 pJ a byte.
GPU = GpuSpec("gpu", 1, fp32_rate=10**12, power=PowerSpec(250_000, 50_000, 150_000, dram_fj=100_000, link_fj=80_000))


def drawn(timeline: Timeline) -> Figure:
    work = WorkDone(
        {name: KernelWork(5 * 10**9, dram_bytes=10**8) for name in timeline.names},
        {},
        dict.fromkeys(timeline.names, 2**27),
    )
    power = measure_power(timeline, work, GPU, "float32")
    return plot_power(timeline, power_curve(timeline, work, GPU, "float32"), power, title="mine")


def test_the_power_figure_labels_its_parts_the_limit_and_the_energy() -> None:
    ax = drawn(layered_run()).axes[0]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "idle",
        "arithmetic",
        "device memory",
        "link",
        "mean of the\nlast 20 ms",
        "limit 250 W",
    ]
    first, second = ax.get_title(loc="left").splitlines()
    assert first == "mine"
    assert " J per iteration, " in second
    assert second.endswith(" W average")
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("power (W)", "time (ms)")
    assert any(set(line.get_ydata()) == {250.0} for line in ax.lines)


def test_the_coloured_area_equals_the_energy() -> None:
    timeline = timeline_of([("compute", SpanKind.COMPUTE, "a", 0, 30_000_000)], [40_000_000])
    shapes = [c for c in drawn(timeline).axes[0].collections if isinstance(c, PolyCollection)]
    assert len(shapes) == 4
    area = 0.0
    for shape in shapes:
        for path in shape.get_paths():
            x, y = path.vertices[:, 0], path.vertices[:, 1]
            area += abs(float(np.dot(x[:-1], y[1:]) - np.dot(x[1:], y[:-1]))) / 2
    # 50 W for 40 ms, 5e9 operations at 150 pJ each, and 1e8 bytes at 100 pJ; milliseconds times watts.
    assert area == pytest.approx(2000 + 750 + 10, rel=1e-9)


def test_no_labels_overlap_or_leave_the_figure() -> None:
    figure = drawn(layered_run())
    figure.canvas.draw()
    ax = figure.axes[0]
    texts = [*ax.get_legend().get_texts(), ax.yaxis.label, ax.xaxis.label, ax._left_title]
    texts += [tick for tick in (*ax.get_yticklabels(), *ax.get_xticklabels()) if tick.get_visible()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]
    for text, box in boxes:
        assert figure.bbox.x0 <= box.x0, text
        assert box.x1 <= figure.bbox.x1, text
        assert figure.bbox.y0 <= box.y0, text
        assert box.y1 <= figure.bbox.y1, text
    for (one, a), (other, b) in combinations([(text, box) for text, box in boxes if box.width and box.height], 2):
        assert not a.overlaps(b), f"{one!r} overlaps {other!r}"


def test_an_empty_run_of_no_length_can_be_drawn(tmp_path: Path) -> None:
    save_figure(drawn(timeline_of([], [0])), tmp_path / "empty.png")
    assert (tmp_path / "empty.png").stat().st_size > 0
