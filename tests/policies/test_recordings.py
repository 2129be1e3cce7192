"""Policies on real recordings, if available: times to the nanosecond and memory to the byte."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from simgpu.errors import OutOfMemoryError
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.importers import import_trace
from simgpu.simulation.run import Result, simulate
from simgpu.trace.model import RELEASED_AT_END, Trace
from simgpu.trace.stats import trace_stats

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
VGG13 = "h100-triosim/vgg13"
#: DTR logs: compute (ns) and peak (bytes) as published with the logs.
LOGS = {
    "titanv-dtr/resnet32-b56.log": (291905487, 10061179152),
    "titanv-dtr/densenet121-b84.log": (355299140, 11020749360),
    "titanv-dtr/unet-b6.log": (435278292, 8415764640),
    "titanv-dtr/transformer-b10.log": (276259118, 9864405000),
}
RECORDINGS = (VGG13, *LOGS)
MODES = ("all", "conv", "dynamic")
PLENTY = 10**12
LINK = LinkSpec("PCIe 3.0 x16", 11_700_000_000, 10_600_000_000)


@cache
def recording(name: str) -> Trace:
    if not (DATA / name).exists():
        pytest.skip(f"the recordings are not next to the repository (../shared/data/{name})")
    return import_trace(DATA / name)[0]


def node(memory: int, alignment: int = 1) -> NodeSpec:
    return NodeSpec("bench", GpuSpec("a GPU", memory, alignment=alignment), LINK)


@cache
def run(name: str, policy: str, memory: int = PLENTY, mode: str = "", alignment: int = 1) -> Result:
    parameters = {"mode": mode} if mode else {}
    return simulate(recording(name), node(memory, alignment), policy, parameters=parameters)


def peak(trace: Trace, alignment: int, *, needed: bool) -> int:
    """The peak of live bytes over all kernels, computed from the blocks' rows alone.

    needed: blocks live until their last use, those still held at the iteration's end if persistent to the end;
    otherwise to their recorded release.
    """
    place = {kernel.id: k for k, kernel in enumerate(trace.kernels)}
    end = len(place) - 1
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for k, kernel in enumerate(trace.kernels):
        for name in (*kernel.reads, *kernel.writes):
            first.setdefault(name, k)
            last[name] = k
    change = [0] * (end + 2)
    for block in trace.blocks:
        born = 0 if block.persistent else place[block.host_write] if block.host_write else first[block.id]
        used = last.get(block.id, born)
        if block.release in place:
            released = used if needed else place[block.release]
        elif block.persistent:
            released = end
        else:
            released = end if block.release == RELEASED_AT_END and not needed else used
        size = -(-block.bytes // alignment) * alignment
        change[born] += size
        change[released + 1] -= size
    alive = most = 0
    for step in change:
        alive += step
        most = max(most, alive)
    return most


@pytest.mark.parametrize("name", RECORDINGS)
def test_ideal_takes_the_sum_of_the_recorded_durations(name):
    trace = recording(name)
    result = run(name, "ideal")
    assert result.iteration_ns == result.ideal_ns == sum(kernel.duration_ns for kernel in trace.kernels)
    assert result.steady and result.metrics.copied_bytes["d2h"] == result.metrics.copied_bytes["h2d"] == 0
    if name in LOGS:
        assert result.iteration_ns == LOGS[name][0]


def test_ideal_on_vgg13_takes_the_published_time_of_its_phases():
    trace = recording(VGG13)
    assert round(run(VGG13, "ideal").iteration_ns / 1e6, 1) == round(28.105 + 62.365 + 3.568, 1)
    assert len(trace.kernels) == 77


@pytest.mark.parametrize("name", LOGS)
def test_none_reports_the_recorded_peak_to_the_byte(name):
    trace = recording(name)
    result = run(name, "none")
    assert result.steady and result.iteration_ns == LOGS[name][0]
    memory = result.timeline.memory("device")
    assert memory.live.max() == memory.used.max() == LOGS[name][1] == peak(trace, 1, needed=False)
    assert result.metrics.device_peak_bytes == LOGS[name][1]


@pytest.mark.slow
@pytest.mark.parametrize("name", LOGS)
def test_the_recorded_peak_fits_exactly_and_one_byte_less_does_not(name):
    assert run(name, "none", LOGS[name][1]).iteration_ns == LOGS[name][0]
    with pytest.raises(OutOfMemoryError) as caught:
        run(name, "none", LOGS[name][1] - 1)
    assert caught.value.kernel in {kernel.id for kernel in recording(name).kernels}


@pytest.mark.parametrize("name", RECORDINGS)
def test_padding_is_shown_separately_from_live_bytes(name):
    trace = recording(name)
    plain, padded = run(name, "none"), run(name, "none", alignment=512)
    live = padded.timeline.memory("device").live
    assert live.max() == plain.timeline.memory("device").live.max() == peak(trace, 1, needed=False)
    assert padded.timeline.memory("device").used.max() == peak(trace, 512, needed=False)
    assert padded.iteration_ns == plain.iteration_ns


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_needed_peak_is_shown_with_the_recorded_one(name):
    trace = recording(name)
    stats = trace_stats(trace)
    assert stats.peak_needed is not None
    assert stats.peak_needed.bytes == peak(trace, 1, needed=True) <= peak(trace, 1, needed=False)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", RECORDINGS)
def test_vdnn_is_steady_with_ample_memory(name, mode):
    result = run(name, "vdnn", mode=mode)
    assert result.steady
    assert result.iteration_ns >= result.ideal_ns
    assert result.metrics.copied_bytes["d2h"] == result.metrics.copied_bytes["h2d"]
    if mode == "dynamic":
        assert result.metrics.copied_bytes["d2h"] == 0 and result.iteration_ns == result.ideal_ns


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", RECORDINGS)
@pytest.mark.parametrize("share", [30, 50, 80, 95])
def test_vdnn_keeps_to_the_budget_or_names_the_kernel_that_cannot_run(name, mode, share):
    budget = peak(recording(name), 1, needed=True) * share // 100
    try:
        result = run(name, "vdnn", budget, mode)
    except OutOfMemoryError as error:
        assert (mode, share) != ("all", 95), "on each of these recordings offloading everything saves a fifth or more"
        assert error.kernel in {kernel.id for kernel in recording(name).kernels} or "before the first" in str(error)
        return
    assert result.steady
    assert result.timeline.memory("device").used.max() <= result.high_water <= budget
    assert result.iteration_ns >= result.ideal_ns


@pytest.mark.parametrize("name", RECORDINGS)
def test_vdnn_offloading_more_moves_more_bytes_and_uses_less_memory(name):
    everything, convolutions = run(name, "vdnn", mode="all"), run(name, "vdnn", mode="conv")
    assert everything.metrics.copied_bytes["d2h"] >= convolutions.metrics.copied_bytes["d2h"]
    assert everything.metrics.device_mean_bytes <= convolutions.metrics.device_mean_bytes
    if name != "titanv-dtr/transformer-b10.log":
        assert convolutions.metrics.copied_bytes["d2h"] > 0
    else:
        assert convolutions.metrics.copied_bytes["d2h"] == 0, "there is no convolution in it"
