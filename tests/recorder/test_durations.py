"""Durations: the host's clock against a known wait, and the GPU's parts against stand-ins."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn

from simgpu.recorder import record
from simgpu.recorder.assemble import assemble
from simgpu.recorder.clocks import CudaClock
from simgpu.recorder.iteration import run_iteration
from simgpu.recorder.layers import LayerTracker
from simgpu.recorder.ledger import Ledger
from simgpu.recorder.notes import KernelNote
from simgpu.recorder.scratch import CudaScratch
from simgpu.recorder.structure import StructurePass
from simgpu.recorder.workload import Workload
from simgpu.trace.check import check_trace
from simgpu.trace.model import BlockKind, Origin, Phase, TraceInfo
from tests.recorder.small_models import named, plain_sgd, summed

_WAIT_NS = 20_000_000


@pytest.fixture(scope="module")
def library() -> Any:
    """An operator that takes at least 20 ms."""
    library = torch.library.Library("simgpu_test", "DEF")
    library.define("wait(Tensor x) -> Tensor")

    def wait(x: torch.Tensor) -> torch.Tensor:
        time.sleep(_WAIT_NS / 1e9)
        return x.clone()

    library.impl("wait", wait, "CompositeExplicitAutograd")
    return library


def test_a_known_wait_is_in_its_own_kernel_and_in_no_other(library: Any) -> None:
    class Waits(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.ops.simgpu_test.wait(x.detach())
            return x

    trace = record(
        lambda: (named(fc=nn.Linear(4, 2), wait=Waits()), torch.ones(2, 4), (), summed), batch=2, repetitions=3
    )
    (waiting,) = [kernel for kernel in trace.kernels if kernel.op == "simgpu_test::wait"]
    assert waiting.duration_ns >= _WAIT_NS
    assert waiting.pure is None
    assert sum(k.duration_ns for k in trace.kernels if k is not waiting) < _WAIT_NS


def test_a_kernel_gets_the_median_of_its_own_calls() -> None:
    notes = [KernelNote(call, "aten::f", Phase.FORWARD, None, (), (), True, None) for call in (0, 2)]
    info = TraceInfo("m", 1, "d", "float32", Origin.RECORDED, "t")
    odd = assemble(info, notes, [], [[5, 0, 70], [9, 0, 50], [1, 0, 60]])
    assert [kernel.duration_ns for kernel in odd.kernels] == [5, 60]
    even = assemble(info, notes, [], [[5, 0, 70], [9, 0, 50]])
    assert [kernel.duration_ns for kernel in even.kernels] == [5, 50]


@pytest.mark.parametrize(
    ("times", "third_less_first_quartile"),
    [
        ([7], None),
        ([9, 7], 9 - 7),
        ([4, 1, 2, 8], 8 - 1),
        ([50, 10, 20, 30, 40], 40 - 20),
        ([*range(0, 90, 10)], 60 - 20),
        ([*range(21)], 15 - 5),
    ],
)
def test_spread_is_between_two_measured_quartiles(times: list[int], third_less_first_quartile: int | None) -> None:
    notes = [KernelNote(0, "aten::f", Phase.FORWARD, None, (), (), True, None)]
    info = TraceInfo("m", 1, "d", "float32", Origin.RECORDED, "t")
    (kernel,) = assemble(info, notes, [], [[time] for time in times]).kernels
    assert kernel.iqr_ns == third_less_first_quartile


@dataclass
class _Device:
    """Stands in for a GPU: events may be read only after a synchronise."""

    log: list[str] = field(default_factory=list)
    clock_ms: float = 0.0

    def synchronize(self) -> None:
        self.log.append("synchronize")

    def new_event(self) -> _Event:
        return _Event(self)


@dataclass
class _Event:
    device: _Device
    at_ms: float = -1.0

    def record(self) -> None:
        self.device.clock_ms += 0.25
        self.at_ms = self.device.clock_ms
        self.device.log.append("record")

    def elapsed_time(self, later: _Event) -> float:
        self.device.log.append("read")
        return later.at_ms - self.at_ms


def test_events_are_recorded_without_waiting_and_read_after_one_synchronise() -> None:
    device = _Device()
    clock = CudaClock(device.new_event, device.synchronize)
    pairs = [(clock.mark(), clock.mark()) for _ in range(3)]
    assert clock.durations(pairs) == [250_000] * 3
    assert device.log == ["record"] * 6 + ["synchronize"] + ["read"] * 3


@dataclass
class _Memory:
    """Stands in for torch.cuda's memory statistics."""

    allocated: int = 1000
    peak: int = 5000

    def reset_peak_memory_stats(self, device: object) -> None:
        self.peak = self.allocated

    def memory_allocated(self, device: object) -> int:
        return self.allocated

    def max_memory_allocated(self, device: object) -> int:
        return self.peak

    def run(self, scratch: int, result: int) -> None:
        self.peak = max(self.peak, self.allocated + scratch + result)
        self.allocated += result


def test_scratch_is_the_peak_beyond_what_is_held_afterwards() -> None:
    memory = _Memory()
    scratch = CudaScratch(torch.device("cuda", 0), memory)
    scratch.start()
    memory.run(scratch=300, result=40)
    assert scratch.used() == 300
    scratch.start()
    memory.run(scratch=0, result=40)
    assert scratch.used() == 0


def test_scratch_becomes_a_workspace_of_its_kernel_alone() -> None:
    class Always:
        def start(self) -> None:
            """Nothing to prepare."""

        def used(self) -> int:
            return 512

    module = named(fc=nn.Linear(4, 2))
    workload = Workload(module, (torch.ones(2, 4),), (), summed)
    ledger = Ledger(torch.device("cpu"))
    with LayerTracker(module) as tracker, StructurePass(ledger, tracker, {}, Always()) as watcher:
        run_iteration(workload, plain_sgd(module.parameters()), watcher)
    info = TraceInfo("m", 2, "d", "float32", Origin.RECORDED, "t")
    trace = assemble(info, watcher.kernels, ledger.blocks, [[1] * len(watcher.signatures)])
    spaces = [block for block in trace.blocks if block.kind is BlockKind.WORKSPACE]
    assert [block.release for block in spaces] == [kernel.id for kernel in trace.kernels]
    assert {block.bytes for block in spaces} == {512}
    assert check_trace(trace) == []
