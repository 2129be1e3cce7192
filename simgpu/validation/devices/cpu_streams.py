"""Streams of a CPU: the calling thread computes, each other stream is a thread that copies or runs busy loops."""

from __future__ import annotations

import ctypes
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch

from simgpu.validation.devices.device import Event


class CpuEvent:
    """Set when its stream comes to it, with the host's clock; carries what went wrong before it on that stream."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._at_ns = 0
        self._error: BaseException | None = None

    def reach(self, error: BaseException | None = None) -> None:
        """The stream has come to it, now."""
        self._at_ns, self._error = time.perf_counter_ns(), error
        self._reached.set()

    def is_done(self) -> bool:
        """Whether the stream has come to it."""
        return self._reached.is_set()

    def synchronize(self) -> None:
        """Wait until the stream has come to it; raises what went wrong there before it."""
        self._reached.wait()
        if self._error is not None:
            raise self._error

    def ns_since(self, earlier: Any) -> int:
        """Nanoseconds from another event to this one."""
        earlier.synchronize()
        self.synchronize()
        return int(self._at_ns - earlier._at_ns)


class OnCopy(Protocol):
    """Told of every copy that has ended, by the thread that made it."""

    def __call__(self, role: str, target: torch.Tensor, source: torch.Tensor, start_ns: int, end_ns: int) -> None:
        """Times are those of `time.perf_counter_ns`."""


class CallingThread:
    """The compute stream of a CPU: work is done when it is asked for, by whoever asks."""

    def __init__(self, loop: BusyLoop, on_copy: OnCopy) -> None:
        self.role = "compute"
        self._loop = loop
        self._on_copy = on_copy

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy now."""
        _check_alike(target, source)
        _copy(self.role, target, source, self._on_copy)

    def busy(self, ns: int) -> None:
        """Keep the calling thread busy."""
        self._loop.run(ns)

    def record(self) -> CpuEvent:
        """An event that is reached already."""
        event = CpuEvent()
        event.reach()
        return event

    def wait(self, event: Event) -> None:
        """Wait for the event now; raises what went wrong on its stream before it."""
        event.synchronize()

    def synchronize(self) -> None:
        """Nothing is ever left to wait for."""


class WorkerThread:
    """A stream of its own: a thread that does in order what is asked of it.

    Where something goes wrong, nothing that was asked for behind it is done; events behind it are still reached, so
    that nobody waits for ever, and raise the error in who waits for them.
    """

    def __init__(self, role: str, loop: BusyLoop, on_copy: OnCopy) -> None:
        self.role = role
        self._loop = loop
        self._on_copy = on_copy
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_work, args=(self._tasks,), name=f"simgpu-{role}", daemon=True)
        self._thread.start()
        self._end = weakref.finalize(self, self._tasks.put, None)
        self._end.atexit = False

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy when all that was asked for before is done; both tensors are held until then."""
        _check_alike(target, source)
        role, on_copy = self.role, self._on_copy
        self._tasks.put(lambda: _copy(role, target, source, on_copy))

    def busy(self, ns: int) -> None:
        """Keep this stream's thread busy."""
        loop = self._loop
        self._tasks.put(lambda: loop.run(ns))

    def record(self) -> CpuEvent:
        """An event behind all that was asked for so far."""
        event = CpuEvent()
        self._tasks.put(event)
        return event

    def wait(self, event: Event) -> None:
        """Whatever is asked for from now on begins after the event."""
        self._tasks.put(event.synchronize)

    def synchronize(self) -> None:
        """Wait for all that was asked for; raises what went wrong first."""
        if self._thread.is_alive():
            self.record().synchronize()

    def close(self) -> None:
        """End the thread when it has done all that was asked for."""
        self._end()
        self._thread.join()


#: Something to do, or an event to be reached.
_Task = Callable[[], None] | CpuEvent


def _work(tasks: queue.SimpleQueue[_Task | None]) -> None:
    """What a stream's thread does. It holds no task beyond its end, so that tensors are freed by their owners."""
    stopped: BaseException | None = None
    while (task := tasks.get()) is not None:
        if isinstance(task, CpuEvent):
            task.reach(stopped)
        elif stopped is None:
            try:
                task()
            except Exception as error:
                stopped = error
        del task


def _check_alike(target: torch.Tensor, source: torch.Tensor) -> None:
    if target.shape != source.shape or target.dtype != source.dtype:
        kinds = [f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in (source, target)]
        raise ValueError(f"a copy from {kinds[0]} to {kinds[1]}")


def _copy(role: str, target: torch.Tensor, source: torch.Tensor, on_copy: OnCopy) -> None:
    """One thread moves the bytes, as a copy engine would: PyTorch's own copy would take threads from compute."""
    begin = time.perf_counter_ns()
    if target.is_contiguous() and source.is_contiguous() and not (source.is_conj() or source.is_neg()):
        ctypes.memmove(target.data_ptr(), source.data_ptr(), target.nbytes)
    else:
        with torch.no_grad():
            target.copy_(source)
    on_copy(role, target, source, begin, time.perf_counter_ns())


#: Fits a core's own cache, so that two loops do not wait at the memory: some ten microseconds of copying.
_CHUNK = 256 * 1024
_CALIBRATION_ROUNDS = 20


class BusyLoop:
    """Copies a small buffer to and fro until the time is over, looking at the clock after each chunk.

    While a chunk is copied, Python's lock is free. How fast chunks are is measured once, so that the last ones can be
    made as small as the time that is left; how long the loop takes is told by the clock alone.
    """

    def __init__(self) -> None:
        self._buffers = threading.local()
        self._bytes_per_ns = self._rate()

    def run(self, ns: int) -> None:
        """Return after so many nanoseconds, or as soon after as the system lets this thread run."""
        end = time.perf_counter_ns() + ns
        source, target = self._own_buffers()
        while (left := end - time.perf_counter_ns()) > 0:
            ctypes.memmove(target, source, max(1, min(_CHUNK, int(left * self._bytes_per_ns))))

    def _own_buffers(self) -> tuple[ctypes.Array[Any], ctypes.Array[Any]]:
        """Every thread has its own, so that loops side by side share nothing."""
        result: tuple[ctypes.Array[Any], ctypes.Array[Any]] | None = getattr(self._buffers, "pair", None)
        if result is None:
            result = self._buffers.pair = (ctypes.create_string_buffer(_CHUNK), ctypes.create_string_buffer(_CHUNK))
        return result

    def _rate(self) -> float:
        source, target = self._own_buffers()
        times = []
        for _ in range(_CALIBRATION_ROUNDS):
            begin = time.perf_counter_ns()
            ctypes.memmove(target, source, _CHUNK)
            times.append(time.perf_counter_ns() - begin)
        return _CHUNK / max(1, min(times))
