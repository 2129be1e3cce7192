"""Devices: order on a stream, no order between streams but by events, memory counted to the byte."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch

from simgpu.errors import InputError
from simgpu.recorder import record
from simgpu.recorder.iteration import NoWatcher, run_iteration
from simgpu.torch.storages import StorageSet
from simgpu.validation.devices import Device, open_device
from simgpu.validation.devices.cpu import CpuDevice
from simgpu.validation.devices.cpu_streams import CpuEvent
from simgpu.validation.devices.cuda import SpinRate, calibrate
from simgpu.validation.measured import MeasuredKind
from tests.recorder.live_bytes import live_bytes
from tests.sets import slow_except
from tests.validation.managed_workloads import BLOCKS, optimizer_of, workload_of

_MIB = 2**20


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """Whatever is asked of a device is asked of both, as far as they are there."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("PyTorch sees no CUDA device")
    opened = open_device(request.param)
    yield opened
    opened.close()


@pytest.fixture
def cpu() -> Iterator[CpuDevice]:
    opened = CpuDevice()
    yield opened
    opened.close()


def filled(tensor: torch.Tensor, value: int) -> torch.Tensor:
    return tensor.fill_(value)


def test_a_missing_device_is_an_input_error() -> None:
    for name in ("tpu", "cuda:99"):
        with pytest.raises(InputError, match="device"):
            open_device(name)


def test_facts_and_name(device: Device) -> None:
    facts = device.facts()
    assert device.name
    assert facts.memory > 2**28
    assert facts.versions["pytorch"] == str(torch.__version__)


def test_views_of_host_buffers_count_as_host_memory(device: Device) -> None:
    host, here = device.host_buffer(64), device.empty(64)
    assert device.is_host(host) and device.is_host(host[8:].view(torch.float32))
    assert not device.is_host(here) and not device.is_host(here[8:].view(torch.float32))


def test_a_stream_copies_in_order(device: Device) -> None:
    stream = device.new_stream("d2h")
    there, back = device.host_buffer(_MIB), device.empty(_MIB)
    for value in range(5):
        source = filled(device.empty(_MIB), value)
        stream.wait(device.compute.record())
        stream.copy(there, source)
        stream.copy(back, there)
        done = stream.record()
        device.compute.wait(done)
        assert back.eq(value).all()
        assert done.is_done()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
def test_copies_preserve_type_and_shape_and_may_change_strides(device: Device, dtype: torch.dtype) -> None:
    values = torch.arange(12).to(dtype).reshape(3, 4).to(device.torch_device)
    host = device.host_buffer(values.nbytes).view(dtype).view(4, 3)
    device.compute.copy(host, values.t())
    device.synchronize()
    assert torch.equal(host, values.t().cpu())


def test_a_copy_between_unlike_tensors_is_refused(device: Device) -> None:
    for stream in (device.compute, device.new_stream("d2h")):
        with pytest.raises(ValueError, match="cannot copy from"):
            stream.copy(device.host_buffer(4), device.empty(8))


def test_lazily_conjugated_values_are_copied_conjugated(cpu: CpuDevice) -> None:
    values = torch.tensor([1 + 2j, 3 - 4j]).conj()
    host = cpu.host_buffer(values.nbytes).view(values.dtype)
    cpu.compute.copy(host, values)
    assert host.tolist() == [1 - 2j, 3 + 4j]


def test_a_stream_overlaps_compute_and_waits_only_for_events(cpu: CpuDevice) -> None:
    stream, gate = cpu.new_stream("h2d"), CpuEvent()
    host, here = filled(cpu.host_buffer(8), 1), filled(cpu.empty(8), 0)
    stream.wait(gate)
    stream.copy(here, host)
    done = stream.record()
    assert not done.is_done() and here.eq(0).all()
    gate.reach()
    cpu.compute.wait(done)
    assert here.eq(1).all()


def test_two_streams_wait_for_each_other_in_turn(cpu: CpuDevice) -> None:
    """Which one thread for both could never do."""
    one, other = cpu.new_stream("d2h"), cpu.new_stream("h2d")
    first = one.record()
    other.wait(first)
    second = other.record()
    one.wait(second)
    third = one.record()
    third.synchronize()
    assert second.ns_since(first) >= 0 and third.ns_since(second) >= 0


def test_a_busy_stream_is_busy_for_at_least_the_requested_time(device: Device) -> None:
    for stream in (device.compute, device.new_stream("d2h")):
        stream.busy(1_000)
        begin = stream.record()
        stream.busy(2_000_000)
        middle = stream.record()
        stream.busy(4_000_000)
        took = middle.ns_since(begin), stream.record().ns_since(middle)
        slack = 0.95 if device.kind == "cuda" else 1.0  # a GPU's loop counts cycles, a CPU's looks at the clock
        assert took[0] >= slack * 2_000_000 and took[1] >= slack * 4_000_000


def test_an_error_on_a_stream_stops_it_and_is_raised_to_all_waiters(cpu: CpuDevice) -> None:
    stream, other = cpu.new_stream("d2h"), cpu.new_stream("h2d")
    before = stream.record()
    failed = CpuEvent()
    failed.reach(ValueError("no such memory"))
    host, here = filled(cpu.host_buffer(8), 1), filled(cpu.empty(8), 0)
    stream.wait(failed)
    stream.copy(here, host)
    after = stream.record()
    other.wait(after)
    before.synchronize()
    for wait in (after.synchronize, stream.synchronize, other.synchronize, cpu.synchronize):
        with pytest.raises(ValueError, match="no such memory"):
            wait()
    assert here.eq(0).all()


def test_threads_end_with_their_stream_or_the_device() -> None:
    device = CpuDevice()
    stored, dropped = device.new_stream("d2h"), device.new_stream("h2d")
    threads = stored._thread, dropped._thread
    del dropped
    gc.collect()
    threads[1].join(timeout=30)
    assert [thread.is_alive() for thread in threads] == [True, False]
    device.close()
    assert not threads[0].is_alive()
    stored.synchronize()


def test_copies_are_watched_by_role_and_direction_while_the_context_lasts(cpu: CpuDevice) -> None:
    out, host, here = cpu.new_stream("d2h"), cpu.host_buffer(8), cpu.empty(8)
    out.copy(host, here)
    with cpu.watch_copies() as seen:
        out.copy(host, here)
        out.synchronize()
        cpu.compute.copy(here[:4], host[:4])
        cpu.compute.copy(here[:4], here[4:])
        out.copy(host, here)
    out.copy(host, here)
    out.synchronize()
    assert [(span.stream_role, span.kind, span.bytes) for span in seen] == [
        ("d2h", MeasuredKind.COPY_D2H, 8),
        ("compute", MeasuredKind.COPY_H2D, 4),
        ("d2h", MeasuredKind.COPY_D2H, 8),
    ]
    ends = [time for span in seen for time in (span.start_ns, span.end_ns)]
    assert ends == sorted(ends)


def test_peak_counts_initial_and_new_tensors_without_host_buffers(device: Device) -> None:
    stored = device.empty(3 * _MIB)
    held = device.peak_of(lambda: None).initial_bytes

    def run() -> None:
        first = device.empty(2 * _MIB)
        second = device.empty(4 * _MIB)
        del first
        third = device.empty(_MIB)
        device.host_buffer(64 * _MIB)
        del second, third

    peak = device.peak_of(run)
    assert peak == (held + 6 * _MIB, held)
    del stored
    assert device.peak_of(lambda: None).initial_bytes == held - 3 * _MIB


def test_temporaries_of_an_operator_do_not_count_in_a_cpus_peak(cpu: CpuDevice) -> None:
    """Both operators take more inside themselves: PyTorch's profiler sees 1 MiB for this convolution."""
    images, weights = torch.ones(8, 16, 32, 32), torch.ones(16, 16, 3, 3)

    def convolve() -> torch.Tensor:
        return torch.conv2d(images, weights, padding=1)

    def normalise() -> torch.Tensor:
        return torch.nn.functional.batch_norm(images, None, None, training=True)

    built = {convolve: images.nbytes, normalise: images.nbytes + 2 * 16 * 4}
    for run, result in built.items():
        peak = cpu.peak_of(run)
        assert peak.peak_bytes - peak.initial_bytes == result


@pytest.mark.parametrize("kind", slow_except(sorted(BLOCKS), "tokens"))
def test_peak_of_an_iteration_is_that_of_its_trace_to_the_byte(cpu: CpuDevice, kind: str) -> None:
    batch = workload_of(kind).inputs[0].shape[0]
    trace = record(lambda: workload_of(kind), batch=batch, repetitions=1, warmup=1, optimizer="sgd")
    gc.collect()
    before = cpu.peak_of(lambda: None).initial_bytes
    workload = workload_of(kind)
    optimizer = optimizer_of(workload)
    run_iteration(workload, optimizer, NoWatcher())
    peak = cpu.peak_of(lambda: run_iteration(workload, optimizer, NoWatcher()))
    assert peak.initial_bytes - before == sum(block.bytes for block in trace.blocks if block.persistent)
    assert peak.peak_bytes - peak.initial_bytes == max(live_bytes(trace))


def test_a_set_of_storages_forgets_the_freed_ones() -> None:
    known, others = StorageSet(), [torch.zeros(8) for _ in range(3)]
    for _ in range(100):  # addresses come again
        tensor = torch.zeros(8)
        assert tensor.untyped_storage() not in known
        known.add(tensor.untyped_storage())
        assert tensor[2:].untyped_storage() in known
        del tensor
    assert not list(known)
    known.add(others[1].untyped_storage())
    assert [other.untyped_storage() in known for other in others] == [False, True, False]


class CudaStandIn:
    """What of `torch.cuda` a device uses, noting what it is asked for; no GPU behind it."""

    def __init__(self) -> None:
        self.expected: list[Any] = []
        self.current = "default"
        self.clock_ms = 0.0

    def __getattr__(self, name: str) -> Any:
        def called(*arguments: Any) -> int:
            self.expected.append((name, *arguments))
            return {"memory_allocated": 7, "max_memory_allocated": 9}.get(name, 0)

        return called

    def current_stream(self, device: Any) -> CudaStreamStandIn:
        return CudaStreamStandIn("default", self)

    def Stream(self, device: Any) -> CudaStreamStandIn:  # noqa: N802
        return CudaStreamStandIn("side", self)

    def Event(self, enable_timing: bool) -> CudaEventStandIn:  # noqa: N802
        assert enable_timing
        return CudaEventStandIn(self)

    def stream(self, stream: CudaStreamStandIn) -> CudaStreamStandIn:
        return stream

    def _sleep(self, cycles: int) -> None:
        self.expected.append(("_sleep", cycles, self.current))
        self.clock_ms += 0.003 + cycles / 1.5e6  # 3 us and then 1.5 cycles a nanosecond

    def get_device_name(self, device: Any) -> str:
        return "a stand-in"


class CudaStreamStandIn:
    def __init__(self, name: str, cuda: CudaStandIn) -> None:
        self.name, self.cuda = name, cuda

    def __enter__(self) -> None:
        self.before, self.cuda.current = self.cuda.current, self.name

    def __exit__(self, *_: object) -> None:
        self.cuda.current = self.before

    def wait_event(self, event: Any) -> None:
        self.cuda.expected.append(("wait_event", self.name))


class CudaEventStandIn:
    def __init__(self, cuda: CudaStandIn) -> None:
        self.cuda = cuda

    def record(self, stream: CudaStreamStandIn) -> None:
        self.ms = self.cuda.clock_ms
        self.cuda.expected.append(("record", stream.name))

    def synchronize(self) -> None:
        self.cuda.expected.append(("event_synchronize",))

    def elapsed_time(self, other: CudaEventStandIn) -> float:
        return other.ms - self.ms


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> CudaStandIn:
    cuda = CudaStandIn()
    monkeypatch.setattr(torch, "cuda", cuda)
    return cuda


def test_a_cuda_stream_spins_for_the_requested_time(on_cpu: CudaStandIn) -> None:
    from simgpu.validation.devices.cuda import CudaDevice

    device = CudaDevice(torch.device("cuda", 0))
    side = device.new_stream("d2h")
    side.busy(1_003_000)
    side.busy(1_000)
    (_, cycles, stream), short = on_cpu.expected[-2:]
    assert cycles == pytest.approx(1_500_000, abs=5) and stream == "side"
    assert short == ("_sleep", 0, "side")
    begin = side.record()
    side.busy(503_000)
    assert side.record().ns_since(begin) == pytest.approx(503_000, abs=5)


def test_a_busy_loop_is_calibrated_with_the_clock_that_a_gpu_has_when_it_is_busy() -> None:
    """Here an idle GPU has a third of it, and all of it after 0.4 s of work."""
    worked_ns = 0

    def spin_ns(cycles: int, count: int) -> int:
        nonlocal worked_ns
        took = count * (2_000 + (cycles // 2 if worked_ns > 400_000_000 else cycles * 3 // 2))
        worked_ns += took
        return took

    assert calibrate(spin_ns) == SpinRate(fixed_ns=2_000.0, cycles_per_ns=2.0)


def test_cuda_streams_wait_on_the_device_and_not_on_the_host(on_cpu: CudaStandIn) -> None:
    from simgpu.validation.devices.cuda import CudaDevice

    device = CudaDevice(torch.device("cuda", 0))
    side = device.new_stream("d2h")
    side.wait(device.compute.record())
    assert on_cpu.expected[-2:] == [("record", "default"), ("wait_event", "side")]


def test_a_cuda_copy_is_asynchronous_and_on_its_stream(on_cpu: CudaStandIn) -> None:
    from simgpu.validation.devices.cuda import CudaDevice

    class Target:
        shape, dtype = (4,), "bytes"

        def copy_(self, source: Any, non_blocking: bool) -> None:
            on_cpu.expected.append(("copy", on_cpu.current, non_blocking))

    target: Any = Target()
    CudaDevice(torch.device("cuda", 0)).new_stream("d2h").copy(target, target)
    assert on_cpu.expected[-1] == ("copy", "side", True)


def test_cuda_peak_is_the_allocators_from_a_fresh_count(on_cpu: CudaStandIn) -> None:
    from simgpu.validation.devices.cuda import CudaDevice

    device = CudaDevice(torch.device("cuda", 0))
    on_cpu.expected.clear()
    assert device.peak_of(lambda: on_cpu.expected.append(("run",))) == (9, 7)
    order = [name for name, *_ in on_cpu.expected]
    assert order == [
        "synchronize",
        "reset_peak_memory_stats",
        "memory_allocated",
        "run",
        "synchronize",
        "max_memory_allocated",
    ]


def test_the_driver_version_is_read(tmp_path: Path) -> None:
    from simgpu.validation.devices.cuda import driver_version

    message = tmp_path / "version"
    message.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC\n")
    assert driver_version(message) == "550.54.15"
    assert driver_version(tmp_path / "none") == ""
