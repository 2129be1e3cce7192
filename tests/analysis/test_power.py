"""Energy and power of hand-made iterations, part by part, by closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.analysis.power import SAMPLE_NS, Power, PowerCurve, measure_power, power_curve
from simgpu.graph.work import KernelWork, WorkDone
from simgpu.hardware.spec import GpuSpec, PowerSpec
from simgpu.timeline.model import SpanKind, Timeline
from tests.timeline.hand_made import HandSpan, timeline_of

K = SpanKind
MS = 10**6
#: A thousand operations a nanosecond; 200 W, 50 W idle, 100 W of arithmetic; 1 pJ and 2 pJ a byte.
GPU = GpuSpec("gpu", 1, fp32_rate=10**12, power=PowerSpec(200_000, 50_000, 100_000, dram_fj=1000, link_fj=2000))
WORK = WorkDone(
    kernels={"conv": KernelWork(500_000, dram_bytes=7_000_000), "relu": KernelWork(0, dram_bytes=3_000_000)},
    codecs={"x:zvc": KernelWork(0, dram_bytes=1_500_000)},
    copies={"x": 1_000_000, "x:zvc": 500_000},
)


def measured(spans: list[HandSpan], ends: list[int], gpu: GpuSpec = GPU, dtype: str = "float32") -> Power:
    return measure_power(timeline_of(spans, ends), WORK, gpu, dtype)


def test_energy_is_the_sum_of_its_parts() -> None:
    power = measured(
        [
            ("compute", K.COMPUTE, "conv", 0, 1000),
            ("d2h", "copy_d2h", "x", 0, 800, 1_000_000, ""),
            ("compute", K.COMPUTE, "relu", 1000, 1500),
            ("compute", K.STALL_EVENT, "x", 1500, 1600, 0, "d2h"),
            ("compute", K.RECOMPUTE, "relu", 1600, 2000),
        ],
        [2000],
    )
    assert power.idle_nj == 50 * 2000
    assert power.arithmetic_nj == 100 * 1000 // 2, "half of the rate for 1000 ns"
    assert power.dram_nj == 7_000 + 2 * 3_000 + 1_000, "kernels, one of them again, and the copy"
    assert power.link_nj == 2_000
    assert power.energy_nj == power.idle_nj + power.arithmetic_nj + power.dram_nj + power.link_nj
    assert power.average_w == power.energy_nj / 2000
    assert (power.limit_mw, power.average_share) == (200_000, power.average_w / 200)


def test_arithmetic_never_draws_more_than_at_the_full_rate() -> None:
    """An algorithm with fewer operations than counted does not exceed the peak power."""
    assert measured([("compute", K.COMPUTE, "conv", 0, 100)], [100]).arithmetic_nj == 100 * 100


@pytest.mark.parametrize(("dtype", "arithmetic"), [("float32", 50_000), ("float16", 12_500), ("bfloat16", 12_500)])
def test_half_precision_products_use_the_peak_rate_of_matrix_units(dtype: str, arithmetic: int) -> None:
    gpu = replace(GPU, tensor_rate=4 * 10**12)
    assert measured([("compute", K.COMPUTE, "conv", 0, 1000)], [1000], gpu, dtype).arithmetic_nj == arithmetic


def test_bfloat16_without_matrix_unit_support_uses_the_single_precision_peak_rate() -> None:
    """Volta's take float16 alone: 500 operations a ns are half of the 1 TFLOP/s of single precision."""
    gpu = replace(GPU, tensor_rate=4 * 10**12, architecture="volta")
    drawn = [
        measured([("compute", K.COMPUTE, "conv", 0, 1000)], [1000], gpu, dtype).arithmetic_nj
        for dtype in ("bfloat16", "float16")
    ]
    assert drawn == [50_000, 12_500]


def test_a_compressing_engine_reads_more_memory_than_it_transfers() -> None:
    power = measured([("compute", K.COMPUTE, "relu", 0, 900), ("d2h", "copy_d2h", "x", 0, 400, 250_000, "")], [900])
    assert (power.dram_nj, power.link_nj) == (3_000 + 1_000, 500)


def test_gpu_codecs_move_raw_and_encoded_bytes_and_host_codecs_none() -> None:
    on_gpu: list[HandSpan] = [("compute", K.ENCODE, "x:zvc", 0, 10), ("compute", K.DECODE, "x:zvc", 10, 30)]
    on_host: list[HandSpan] = [("compute", K.COMPUTE, "relu", 0, 30), ("host", K.ENCODE, "x:zvc", 0, 20)]
    assert measured(on_gpu, [30]).dram_nj == 2 * 1_500
    assert measured(on_host, [30]).dram_nj == 3_000


def test_spans_across_iteration_bounds_count_with_their_part_inside() -> None:
    spans: list[HandSpan] = [
        ("compute", K.COMPUTE, "relu", 0, 100),
        ("d2h", "copy_d2h", "x", 60, 160, 1_000_000, ""),
        ("compute", K.COMPUTE, "relu", 100, 200),
    ]
    first, second = (measure_power(timeline_of(spans, [100, 200]), WORK, GPU, "float32", i) for i in (0, 1))
    assert (first.link_nj, second.link_nj) == (2_000 * 40 // 100, 2_000 * 60 // 100)
    assert (first.dram_nj, second.dram_nj) == (3_000 + 400, 3_000 + 600)


def test_all_gpus_of_a_timeline_draw_power() -> None:
    one = timeline_of([("compute", K.COMPUTE, "relu", 0, 100)], [100], streams=("compute", "gpu1.compute"))
    two = timeline_of(
        [("compute", K.COMPUTE, "relu", 0, 100), ("gpu1.compute", K.COMPUTE, "relu", 0, 100)],
        [100],
        streams=("compute", "gpu1.compute"),
    )
    two = replace(two, gpu=np.array([0, 1]))
    alone, together = (measure_power(timeline, WORK, GPU, "float32") for timeline in (one, two))
    assert together.energy_nj == 2 * alone.energy_nj
    assert together.limit_mw == 2 * alone.limit_mw


def test_an_iteration_of_zero_length_has_no_energy() -> None:
    power = measured([("compute", K.COMPUTE, "conv", 0, 0)], [0])
    assert (power.energy_nj, power.average_w, power.largest_w) == (0, 0.0, 0.0)


def test_a_gpu_without_power_figures_is_refused() -> None:
    with pytest.raises(ValueError, match="what gpu draws is not stated"):
        measured([], [10], replace(GPU, power=None))


# --- power over time ------------------------------------------------------------------------------------------------


def alternating() -> Timeline:
    """30 ms of 150 W, 50 ms of 50 W, 10 ms of 150 W."""
    return timeline_of(
        [("compute", K.COMPUTE, "long", 0, 30 * MS), ("compute", K.COMPUTE, "short", 80 * MS, 90 * MS)], [90 * MS]
    )


FULL_RATE = WorkDone({"long": KernelWork(30 * MS * 1000, 0), "short": KernelWork(10 * MS * 1000, 0)}, {}, {})


def test_the_power_curve_has_a_step_at_each_change() -> None:
    curve = power_curve(alternating(), FULL_RATE, GPU, "float32")
    assert curve.time_ns.tolist() == [0, 30 * MS, 80 * MS, 90 * MS]
    assert curve.total.tolist() == [150.0, 50.0, 150.0]
    assert curve.idle.tolist() == [50.0, 50.0, 50.0]
    assert curve.means(curve.total, np.array([0, 60 * MS, 90 * MS])).tolist() == pytest.approx([100.0, 250 / 3])


@pytest.mark.parametrize(
    ("window_ms", "largest"),
    [
        (1, 150.0),
        (40, 150.0),  # the last 10 ms, and the first 30 of the next iteration
        (60, (40 * 150 + 20 * 50) / 60),
        (90, (40 * 150 + 50 * 50) / 90),
        (130, (80 * 150 + 50 * 50) / 130),
    ],
)
def test_the_largest_mean_power_may_span_consecutive_iterations(window_ms: int, largest: float) -> None:
    curve = power_curve(alternating(), FULL_RATE, GPU, "float32")
    assert curve.largest_mean(window_ms * MS) == pytest.approx(largest, rel=1e-12)


def test_a_short_burst_is_averaged_over_the_window() -> None:
    burst = timeline_of([("compute", K.COMPUTE, "short", 0, 10 * MS)], [100 * MS])
    power = measure_power(burst, FULL_RATE, GPU, "float32")
    assert SAMPLE_NS == 20 * MS
    assert power.largest_w == pytest.approx(100.0, rel=1e-12)
    assert power.average_w == 60.0


@st.composite
def runs(draw: st.DrawFn) -> Timeline:
    """Kernels and copies of any length, with waits between them."""
    spans: list[HandSpan] = []
    for stream, kind, name in (("compute", K.COMPUTE, "conv"), ("d2h", "copy_d2h", "x"), ("h2d", "copy_h2d", "x")):
        now = 0
        for pause, length in draw(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 90)), max_size=8)):
            spans.append((stream, kind, name, now + pause, now + pause + length, 1000 * length, ""))
            now += pause + length
    end = draw(st.integers(1, 600))
    return timeline_of(spans, [draw(st.integers(0, end - 1)), end])


@given(runs(), st.integers(1, 2000))
def test_energy_is_the_integral_of_the_curve(timeline: Timeline, window_ns: int) -> None:
    power = measure_power(timeline, WORK, GPU, "float32")
    curve: PowerCurve = power_curve(timeline, WORK, GPU, "float32")
    lengths = np.diff(curve.time_ns)
    for watts, energy in (
        (curve.idle, power.idle_nj),
        (curve.arithmetic, power.arithmetic_nj),
        (curve.dram, power.dram_nj),
        (curve.link, power.link_nj),
    ):
        # Energies are rounded down to whole nanojoules, those of cut spans to picojoules.
        assert energy <= (watts * lengths).sum() + 1e-6
        assert (watts * lengths).sum() < energy + 1.1
    # The windows of an iteration that repeats itself cover all of it alike.
    assert power.average_w * (1 - 1e-12) <= curve.largest_mean(window_ns) <= curve.total.max() * (1 + 1e-12)
