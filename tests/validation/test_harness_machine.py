"""Measuring a machine: what a device with known speeds comes to, and a real one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch

from simgpu.recorder.machine.bandwidth import CopyDirection
from simgpu.validation.devices import DeviceFacts, open_device
from simgpu.validation.harness.machine import measure_bidirectional, measure_machine

LATENCY = 3_000
#: Bytes per nanosecond by stream, alone and while the other way is busy.
ALONE = {"d2h": 8, "h2d": 16, "compute": 32}
BOTH = {"d2h": 4, "h2d": 8}


@dataclass
class At:
    """A point in time."""

    ns: int

    def ns_since(self, earlier: At) -> int:
        return self.ns - earlier.ns


@dataclass
class TimedStream:
    """Does nothing, and knows how long it would have taken."""

    role: str
    speeds: dict[str, int]
    now: int = 0
    copies: list[int] = field(default_factory=list)

    def copy(self, target: Any, source: Any) -> None:
        assert target.nbytes == source.nbytes
        self.copies.append(source.nbytes)
        self.now += LATENCY + source.nbytes // self.speeds[self.role]

    def busy(self, ns: int) -> None:
        self.now += ns

    def record(self) -> At:
        return At(self.now)

    def wait(self, event: At) -> None:
        self.now = max(self.now, event.ns)

    def synchronize(self) -> None:
        """Nothing to wait for."""


class TimedDevice:
    """A device of such streams."""

    kind = "cuda"
    name = "a timed device"

    def __init__(self, speeds: dict[str, int]) -> None:
        self.speeds = speeds
        self.compute = TimedStream("compute", speeds)
        self.host: list[torch.Tensor] = []

    def facts(self) -> DeviceFacts:
        return DeviceFacts(memory=2**30, alignment=512, copy_engines=None, versions={"driver": "1.2"})

    def new_stream(self, role: str) -> TimedStream:
        return TimedStream(role, self.speeds)

    def host_buffer(self, nbytes: int) -> torch.Tensor:
        self.host.append(torch.empty(nbytes, dtype=torch.uint8))
        return self.host[-1]

    def empty(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def synchronize(self) -> None:
        """Nothing to wait for."""


def test_bandwidths_and_latency_are_those_of_the_device() -> None:
    sizes = (2**10, 2**14, 2**18)
    result = measure_machine(TimedDevice(ALONE), sizes, settings={"clock": "true"}, repetitions=5, date="2026-01-02")  # type: ignore[arg-type]
    largest = max(sizes)
    for role, message in (("d2h", result.copies.d2h), ("h2d", result.copies.h2d)):
        assert message == largest * 10**9 // (LATENCY + largest // ALONE[role])
    assert result.copies.latency_ns == LATENCY
    assert (result.memory, result.alignment, result.copy_engines, result.date) == (2**30, 512, 2, "2026-01-02")
    assert result.versions["driver"] == "1.2"
    assert result.settings == {"clock": "true"}
    assert {"python", "simgpu"} <= result.versions.keys()


def test_both_ways_at_once_are_measured_while_both_are_busy() -> None:
    size = 2**18
    result = measure_bidirectional(TimedDevice(BOTH), size, repetitions=5)  # type: ignore[arg-type]
    assert result == {
        CopyDirection.OUT: size * 10**9 // (LATENCY + size // BOTH["d2h"]),
        CopyDirection.IN: size * 10**9 // (LATENCY + size // BOTH["h2d"]),
    }


def test_a_cpu_is_measured() -> None:
    device = open_device("cpu")
    try:
        result = measure_machine(device, (2**12, 2**20), repetitions=3)
    finally:
        device.close()
    copies = result.copies
    assert min(copies.d2h, copies.h2d, copies.bidirectional_d2h, copies.bidirectional_h2d) > 0
    assert copies.blocking_ns > 0
    assert result.launch_ns > 0
    assert (result.kind, result.alignment) == ("cpu", 1)
    assert result.versions["pytorch"] == torch.__version__
