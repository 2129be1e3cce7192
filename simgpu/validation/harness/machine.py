"""Measures a device and its link to the host."""

from __future__ import annotations

import datetime
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low
from typing import Any

from simgpu.recorder.environment import processor_name
from simgpu.recorder.machine.bandwidth import DEFAULT_SIZES, CopyDirection, measure
from simgpu.units import TIME_UNITS
from simgpu.validation.devices import Device, Stream
from simgpu.validation.managed.save_on_cpu import save_on_cpu_blocks_host
from simgpu.validation.measured import Copies, MeasuredMachine
from simgpu.version import __version__

DEFAULT_REPETITIONS = 20
_WARM_UP = 3
_ROLES = {CopyDirection.OUT: "d2h", CopyDirection.IN: "h2d"}
#: Long enough to queue all copies before the first begins; otherwise small copies would wait for the host.
_GATE_NS = 5 * TIME_UNITS["ms"]
_TINY = 4
_OPERATORS = 200
#: Default if a device does not report it: one engine per direction.
_COPY_ENGINES = 2


def measure_machine(
    device: Device,
    sizes: Sequence[int] = DEFAULT_SIZES,
    repetitions: int = DEFAULT_REPETITIONS,
    date: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> MeasuredMachine:
    """Measures the machine.

    sizes: bytes of the copies, at least two different sizes; the largest gives the bandwidths, all give the latency.
    repetitions: copies per size; the median is used.
    date: ISO 8601 day to record, today by default.
    settings: to record, from `simgpu.validation.harness.session.conditions`.

    Allocates two buffers of the largest size on the device and on the host.
    """
    speeds = measure(_DeviceCopies(device), sizes, repetitions)
    both = measure_bidirectional(device, max(sizes), repetitions)
    facts = device.facts()
    copies = Copies(
        speeds.d2h,
        speeds.h2d,
        both[CopyDirection.OUT],
        both[CopyDirection.IN],
        speeds.latency_ns,
        blocking_ns(device, repetitions),
    )
    return MeasuredMachine(
        device=device.name,
        kind=device.kind,
        memory=facts.memory,
        alignment=facts.alignment,
        copy_engines=facts.copy_engines or _COPY_ENGINES,
        copies=copies,
        launch_ns=launch_ns(device, repetitions),
        host=processor_name(),
        date=date if date is not None else datetime.date.today().isoformat(),
        versions=versions(device),
        settings=dict(settings or {}),
        blocking_save_on_cpu=save_on_cpu_blocks_host(device),
    )


@dataclass(frozen=True)
class _DeviceCopies:
    """Adapts a device to `simgpu.recorder.machine.bandwidth.measure`; each direction has its own stream."""

    device: Device

    def copy_times(self, way: CopyDirection, size: int, repetitions: int) -> list[int]:
        """Nanoseconds of each of several consecutive copies, measured with events."""
        source, target = _memory(self.device, way, size)
        stream = self.device.compute if way is CopyDirection.WITHIN else self.device.new_stream(_ROLES[way])
        stream.busy(_GATE_NS)
        marks = [stream.record()]
        for _ in range(_WARM_UP + repetitions):
            stream.copy(target, source)
            marks.append(stream.record())
        stream.synchronize()
        return [end.ns_since(begin) for begin, end in pairwise(marks[_WARM_UP:])]


def measure_bidirectional(device: Device, size: int, repetitions: int) -> dict[CopyDirection, int]:
    """Bytes per second each way during bidirectional copies: medians over copies that overlap the other direction."""
    streams: dict[CopyDirection, Stream] = {way: device.new_stream(role) for way, role in _ROLES.items()}
    memory = {way: _memory(device, way, size) for way in streams}
    for way, stream in streams.items():
        _copy(stream, memory[way])
    device.synchronize()
    device.compute.busy(_GATE_NS)
    gate = device.compute.record()
    for stream in streams.values():
        stream.wait(gate)
    marks = {way: [stream.record()] for way, stream in streams.items()}
    for _ in range(repetitions):
        for way, stream in streams.items():
            _copy(stream, memory[way])
            marks[way].append(stream.record())
    device.synchronize()
    ends = {way: [mark.ns_since(gate) for mark in result] for way, result in marks.items()}
    return {way: size * TIME_UNITS["s"] // max(1, median_low(times)) for way, times in _while_both(ends).items()}


def _while_both(ends: dict[CopyDirection, list[int]]) -> dict[CopyDirection, list[int]]:
    """Durations of the copies that ended while both directions were busy.

    ends: start of the first copy, then the end of each. If no copy of a direction qualifies, its first one is used.

    >>> _while_both({CopyDirection.OUT: [0, 10, 20, 30], CopyDirection.IN: [0, 20, 40, 50]})
    {<CopyDirection.OUT: 'device to host'>: [10, 10, 10], <CopyDirection.IN: 'host to device'>: [20]}
    """
    end_of_both = min(result[-1] for result in ends.values())
    times = {
        way: [end - begin for begin, end in pairwise(result) if end <= end_of_both] for way, result in ends.items()
    }
    return {way: result or [ends[way][1] - ends[way][0]] for way, result in times.items()}


def blocking_ns(device: Device, repetitions: int) -> int:
    """Host time of a blocking device-to-host copy of `_TINY` bytes on the compute stream."""
    source, target = _memory(device, CopyDirection.OUT, _TINY)

    def copy_and_wait() -> None:
        device.compute.copy(target, source)
        device.compute.synchronize()

    return median_low([_host_time(device, copy_and_wait) for _ in range(_WARM_UP + repetitions)][_WARM_UP:])


def launch_ns(device: Device, repetitions: int) -> int:
    """Host time per operator launch, averaged over many consecutive tiny operators."""
    tensor = device.empty(_TINY)

    def launch() -> None:
        for _ in range(_OPERATORS):
            tensor.add_(1)

    times = [_host_time(device, launch) for _ in range(_WARM_UP + repetitions)]
    return median_low(times[_WARM_UP:]) // _OPERATORS


def versions(device: Device) -> dict[str, str]:
    """Versions that the device reports, of Python and of simgpu."""
    return {**device.facts().versions, "python": platform.python_version(), "simgpu": __version__}


def _memory(device: Device, way: CopyDirection, size: int) -> tuple[Any, Any]:
    """Source and target of a copy, both written once so that the system commits their pages."""
    source = device.host_buffer(size) if way is CopyDirection.IN else device.empty(size)
    target = device.host_buffer(size) if way is CopyDirection.OUT else device.empty(size)
    source.zero_()
    target.zero_()
    device.synchronize()
    return source, target


def _copy(stream: Stream, memory: tuple[Any, Any]) -> None:
    source, target = memory
    stream.copy(target, source)


def _host_time(device: Device, run: Callable[[], None]) -> int:
    device.synchronize()
    begin = time.perf_counter_ns()
    run()
    return time.perf_counter_ns() - begin
