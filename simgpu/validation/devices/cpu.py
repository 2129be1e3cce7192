"""PyTorch on a CPU as a device: the calling thread computes, other threads copy.

PyTorch's allocations count as device memory, NumPy's as host memory. PyTorch's memory profiler measures the peak.
"""

from __future__ import annotations

import os
import platform
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from simgpu.recorder.environment import device_name
from simgpu.torch.storages import StorageSet, living_storages
from simgpu.validation.devices.cpu_streams import BusyLoop, CallingThread, WorkerThread
from simgpu.validation.devices.device import CopySpan, DeviceFacts, Peak, Stream
from simgpu.validation.measured import MeasuredKind


class CpuDevice:
    """A `simgpu.validation.devices.Device` available on every machine.

    >>> device = CpuDevice()
    >>> copies = device.new_stream("d2h")
    >>> there, here = device.host_buffer(4), device.empty(4)
    >>> _ = here.fill_(7)
    >>> copies.copy(there, here)
    >>> copies.record().synchronize()
    >>> there.tolist()
    [7, 7, 7, 7]
    >>> device.close()
    """

    def __init__(self) -> None:
        self.kind = "cpu"
        self.torch_device = torch.device("cpu")
        self.name = device_name(self.torch_device)
        self._loop = BusyLoop()
        self._host = StorageSet()
        self._watchers: list[list[CopySpan]] = []
        self._streams: weakref.WeakSet[WorkerThread] = weakref.WeakSet()
        self.compute: Stream = CallingThread(self._loop, self._note)

    def facts(self) -> DeviceFacts:
        """The machine's total memory, versions, and two copy engines, since every stream has its own thread."""
        pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        versions = {
            "pytorch": str(torch.__version__),
            "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        }
        return DeviceFacts(memory=pages * page, alignment=1, copy_engines=2, versions=versions)

    def new_stream(self, role: str) -> WorkerThread:
        """A stream with its own thread, for copies and busy loops."""
        stream = WorkerThread(role, self._loop, self._note)
        self._streams.add(stream)
        return stream

    def host_buffer(self, nbytes: int) -> torch.Tensor:
        """Memory that NumPy allocates, so that PyTorch does not count it."""
        buffer: torch.Tensor = torch.from_numpy(np.empty(nbytes, np.uint8))
        self._host.add(buffer.untyped_storage())
        return buffer

    def empty(self, nbytes: int) -> torch.Tensor:
        """Memory that PyTorch allocates."""
        return torch.empty(nbytes, dtype=torch.uint8)

    def is_host(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is in a host buffer."""
        return tensor.untyped_storage() in self._host

    def synchronize(self) -> None:
        """Waits for all threads; raises the first error that occurred in any of them."""
        for stream in list(self._streams):
            stream.synchronize()

    def peak_of(self, run: Callable[[], object]) -> Peak:
        """Calls `run` once under PyTorch's memory profiler.

        The initial bytes are the storages of all tensors that Python knows.
        """
        self.synchronize()
        storages = living_storages(self.torch_device)
        initial_bytes = sum(storage.nbytes() for storage in storages if storage not in self._host)

        def run_to_the_end() -> None:
            run()
            self.synchronize()

        return profiled_peak(run_to_the_end, initial_bytes)

    @contextmanager
    def watch_copies(self) -> Iterator[list[CopySpan]]:
        """Collects copies between device and host on every stream, in order of their ends.

        Copies within one of them are ignored. Complete when the context exits.
        """
        self.synchronize()
        copies: list[CopySpan] = []
        self._watchers.append(copies)
        try:
            yield copies
            self.synchronize()
        finally:
            self._watchers = [watcher for watcher in self._watchers if watcher is not copies]

    def close(self) -> None:
        """Waits for every thread and ends it."""
        for stream in list(self._streams):
            stream.close()

    def _note(self, role: str, target: torch.Tensor, source: torch.Tensor, start_ns: int, end_ns: int) -> None:
        if not self._watchers:
            return
        to_host, from_host = self.is_host(target), self.is_host(source)
        if to_host == from_host:
            return
        kind = MeasuredKind.COPY_D2H if to_host else MeasuredKind.COPY_H2D
        for copies in self._watchers:
            copies.append(CopySpan(role, kind, target.nbytes, start_ns, end_ns))


_MEMORY = "[memory]"


def profiled_peak(run: Callable[[], object], initial_bytes: int) -> Peak:
    """Calls `run` and returns its peak; `initial_bytes` are allocated before.

    Memory that an operator allocates and frees while it runs does not count, as in a trace recorded on a CPU. Initial
    memory that is freed meanwhile counts until the end, since the profiler reports only frees of memory whose
    allocation it saw. A training step frees no initial memory.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler's library writes a line to stderr
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    roots = profiler.profiler.kineto_results.experimental_event_tree()
    events = sorted(_lasting(roots), key=lambda event: event.start_time_ns)
    current = peak = 0
    for event in events:
        current += event.extra_fields.alloc_size
        peak = max(peak, current)
    return Peak(initial_bytes + peak, initial_bytes)


def _lasting(events: Iterable[Any]) -> Iterator[Any]:
    """Allocations and frees, without temporary memory inside an operator."""
    for event in events:
        if event.name == _MEMORY:
            yield event
        elif _is_one_operator(event.name):
            yield from _without_pairs(event.children)
        else:
            yield from _lasting(event.children)


def _without_pairs(events: Iterable[Any]) -> Iterator[Any]:
    memory = sorted(_memory_below(events), key=lambda event: event.start_time_ns)
    open_at: dict[int, int] = {}
    temporary: set[int] = set()
    for place, event in enumerate(memory):
        address = event.extra_fields.ptr
        if event.extra_fields.alloc_size > 0:
            open_at[address] = place
        elif address in open_at:
            temporary |= {open_at.pop(address), place}
    return (event for place, event in enumerate(memory) if place not in temporary)


def _memory_below(events: Iterable[Any]) -> Iterator[Any]:
    for event in events:
        if event.name == _MEMORY:
            yield event
        yield from _memory_below(event.children)


@cache
def _is_one_operator(name: str) -> bool:
    """Whether a profiler event is an operator that autograd and a recording see as one, not as a composite."""
    namespace, _, operator = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), operator, None) if namespace == "aten" else None
    if packet is None:
        return False
    names = (getattr(packet, overload).name() for overload in packet.overloads())
    return not any(_is_composite(overload) for overload in names)


def _is_composite(overload: str) -> bool:
    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(overload, "CompositeImplicitAutograd"))
    except RuntimeError:  # the overload exists only in TorchScript
        return False
