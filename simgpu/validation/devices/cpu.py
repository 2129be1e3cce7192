"""The CPU build of PyTorch as a device: the calling thread computes, other threads copy.

Device memory is what PyTorch allocates; host memory is what NumPy allocates, so that the two can be told apart. Peak
memory comes from PyTorch's memory profiler.
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
from simgpu.validation.devices.cpu_streams import BusyLoop, CallingThread, WorkerThread
from simgpu.validation.devices.device import CopySpan, DeviceFacts, Peak, Stream
from simgpu.validation.devices.storages import StorageSet, living_storages
from simgpu.validation.measured import MeasuredKind


class CpuDevice:
    """A `simgpu.validation.devices.Device` that is there on every machine.

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
        """All of the machine's memory; every stream has its own thread, so copies both ways run at once."""
        pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        versions = {
            "pytorch": str(torch.__version__),
            "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        }
        return DeviceFacts(memory=pages * page, alignment=1, copy_engines=2, versions=versions)

    def new_stream(self, role: str) -> WorkerThread:
        """A thread that copies and keeps busy next to the calling one."""
        stream = WorkerThread(role, self._loop, self._note)
        self._streams.add(stream)
        return stream

    def host_buffer(self, nbytes: int) -> torch.Tensor:
        """Bytes that NumPy allocates, so that PyTorch does not count them."""
        buffer: torch.Tensor = torch.from_numpy(np.empty(nbytes, np.uint8))
        self._host.add(buffer.untyped_storage())
        return buffer

    def empty(self, nbytes: int) -> torch.Tensor:
        """Bytes that PyTorch allocates."""
        return torch.empty(nbytes, dtype=torch.uint8)

    def is_host(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in a host buffer."""
        return tensor.untyped_storage() in self._host

    def synchronize(self) -> None:
        """Wait for every thread; raises what went wrong first on one."""
        for stream in list(self._streams):
            stream.synchronize()

    def peak_of(self, run: Callable[[], object]) -> Peak:
        """Call `run` once under PyTorch's memory profiler (`simgpu.validation.devices.cpu`).

        Held before is every storage of a tensor that Python knows of, whoever made it.
        """
        self.synchronize()
        storages = living_storages(self.torch_device)
        held = sum(storage.nbytes() for storage in storages if storage not in self._host)

        def run_to_the_end() -> None:
            run()
            self.synchronize()

        return profiled_peak(run_to_the_end, held)

    @contextmanager
    def watch_copies(self) -> Iterator[list[CopySpan]]:
        """Note copies between device and host, of every stream; copies within one of the two are no such."""
        self.synchronize()
        seen: list[CopySpan] = []
        self._watchers.append(seen)
        try:
            yield seen
            self.synchronize()
        finally:
            self._watchers = [watcher for watcher in self._watchers if watcher is not seen]

    def close(self) -> None:
        """Wait for every thread and end it."""
        for stream in list(self._streams):
            stream.close()

    def _note(self, role: str, target: torch.Tensor, source: torch.Tensor, start_ns: int, end_ns: int) -> None:
        if not self._watchers:
            return
        to_host, from_host = self.is_host(target), self.is_host(source)
        if to_host == from_host:
            return
        kind = MeasuredKind.COPY_D2H if to_host else MeasuredKind.COPY_H2D
        for seen in self._watchers:
            seen.append(CopySpan(role, kind, target.nbytes, start_ns, end_ns))


_MEMORY = "[memory]"


def profiled_peak(run: Callable[[], object], held: int) -> Peak:
    """Call `run`; `held` bytes are held before.

    What an operator takes and gives back while it runs does not count, as in a trace that was recorded on a CPU. Memory
    that was there before and is freed meanwhile counts to the end: the profiler tells only of memory whose allocation
    it saw. A training step frees none such.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler's library writes a line to stderr
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    roots = profiler.profiler.kineto_results.experimental_event_tree()
    events = sorted(_lasting(roots), key=lambda event: event.start_time_ns)
    now = most = 0
    for event in events:
        now += event.extra_fields.alloc_size
        most = max(most, now)
    return Peak(held + most, held)


def _lasting(events: Iterable[Any]) -> Iterator[Any]:
    """Allocations and frees, without those that one operator makes and undoes."""
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
    passing: set[int] = set()
    for place, event in enumerate(memory):
        address = event.extra_fields.ptr
        if event.extra_fields.alloc_size > 0:
            open_at[address] = place
        elif address in open_at:
            passing |= {open_at.pop(address), place}
    return (event for place, event in enumerate(memory) if place not in passing)


def _memory_below(events: Iterable[Any]) -> Iterator[Any]:
    for event in events:
        if event.name == _MEMORY:
            yield event
        yield from _memory_below(event.children)


@cache
def _is_one_operator(name: str) -> bool:
    """Whether a profiler's event is an operator that is not made of others which autograd and a recording see."""
    namespace, _, operator = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), operator, None) if namespace == "aten" else None
    if packet is None:
        return False
    names = (getattr(packet, overload).name() for overload in packet.overloads())
    return not any(_is_composite(overload) for overload in names)


def _is_composite(overload: str) -> bool:
    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(overload, "CompositeImplicitAutograd"))
    except RuntimeError:  # an overload that only TorchScript has
        return False
