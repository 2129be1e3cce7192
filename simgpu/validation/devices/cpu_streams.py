"""Streams of a CPU: the calling thread computes; every other stream is a thread that copies or runs busy loops."""

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
    """An event with the host time at which its stream reached it, and an earlier error of that stream, if any."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._at_ns = 0
        self._error: BaseException | None = None

    def reach(self, error: BaseException | None = None) -> None:
        """Marks the event as reached now."""
        self._at_ns, self._error = time.perf_counter_ns(), error
        self._reached.set()

    def is_done(self) -> bool:
        """Whether the stream has reached it."""
        return self._reached.is_set()

    def synchronize(self) -> None:
        """Waits until the stream reaches it; raises an earlier error of the stream."""
        self._reached.wait()
        if self._error is not None:
            raise self._error

    def ns_since(self, earlier: Any) -> int:
        """Nanoseconds from another event to this one."""
        earlier.synchronize()
        self.synchronize()
        return int(self._at_ns - earlier._at_ns)


class OnCopy(Protocol):
    """A callback for every finished copy, on the thread that made it."""

    def __call__(self, role: str, target: torch.Tensor, source: torch.Tensor, start_ns: int, end_ns: int) -> None:
        """Receives a copy; times are from `time.perf_counter_ns`."""


class CallingThread:
    """The compute stream of a CPU: the caller does the work at once."""

    def __init__(self, loop: BusyLoop, on_copy: OnCopy) -> None:
        self.role = "compute"
        self._loop = loop
        self._on_copy = on_copy

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copies now."""
        _check_alike(target, source)
        _copy(self.role, target, source, self._on_copy)

    def busy(self, ns: int) -> None:
        """Keeps the calling thread busy."""
        self._loop.run(ns)

    def record(self) -> CpuEvent:
        """Returns an event that is already reached."""
        event = CpuEvent()
        event.reach()
        return event

    def wait(self, event: Event) -> None:
        """Waits for the event now; raises an earlier error of its stream."""
        event.synchronize()

    def synchronize(self) -> None:
        """Does nothing: all work is already done."""


class WorkerThread:
    """A stream with its own thread, which runs its tasks in order.

    After an error the stream skips all later tasks. Later events are still reached, so that no thread waits forever,
    and raise the error in threads that wait for them.
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
        """Copies after all earlier tasks; keeps both tensors alive until then."""
        _check_alike(target, source)
        role, on_copy = self.role, self._on_copy
        self._tasks.put(lambda: _copy(role, target, source, on_copy))

    def busy(self, ns: int) -> None:
        """Keeps this stream's thread busy."""
        loop = self._loop
        self._tasks.put(lambda: loop.run(ns))

    def record(self) -> CpuEvent:
        """Returns an event after all tasks queued so far."""
        event = CpuEvent()
        self._tasks.put(event)
        return event

    def wait(self, event: Event) -> None:
        """Starts later tasks after the event."""
        self._tasks.put(event.synchronize)

    def synchronize(self) -> None:
        """Waits for all queued tasks; raises the first error."""
        if self._thread.is_alive():
            self.record().synchronize()

    def close(self) -> None:
        """Ends the thread after its queued tasks."""
        self._end()
        self._thread.join()


#: Work to run, or an event to mark as reached.
_Task = Callable[[], None] | CpuEvent


def _work(tasks: queue.SimpleQueue[_Task | None]) -> None:
    """Runs a stream's tasks; drops each task when it ends, so that it keeps no tensor alive."""
    first_error: BaseException | None = None
    while (task := tasks.get()) is not None:
        if isinstance(task, CpuEvent):
            task.reach(first_error)
        elif first_error is None:
            try:
                task()
            except Exception as error:
                first_error = error
        del task


def _check_alike(target: torch.Tensor, source: torch.Tensor) -> None:
    if target.shape != source.shape or target.dtype != source.dtype:
        kinds = [f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in (source, target)]
        raise ValueError(f"cannot copy from {kinds[0]} to {kinds[1]}: shapes and types must be equal")


def _copy(role: str, target: torch.Tensor, source: torch.Tensor, on_copy: OnCopy) -> None:
    """Copies in one thread, like a copy engine; PyTorch's own copy would use threads of compute."""
    begin = time.perf_counter_ns()
    if target.is_contiguous() and source.is_contiguous() and not (source.is_conj() or source.is_neg()):
        ctypes.memmove(target.data_ptr(), source.data_ptr(), target.nbytes)
    else:
        with torch.no_grad():
            target.copy_(source)
    on_copy(role, target, source, begin, time.perf_counter_ns())


#: Fits a core's private cache, so that two loops do not compete for memory bandwidth; takes about 10 us to copy.
_CHUNK = 256 * 1024
_CALIBRATION_ROUNDS = 20


class BusyLoop:
    """Copies a small buffer repeatedly until a time has passed, and checks the clock after each chunk.

    Python's global lock is free during a chunk. The copy rate is measured once, to fit the last chunks to the remaining
    time; only the clock ends the loop.
    """

    def __init__(self) -> None:
        self._buffers = threading.local()
        self._bytes_per_ns = self._rate()

    def run(self, ns: int) -> None:
        """Returns after `ns` nanoseconds, or as soon afterwards as the system schedules this thread."""
        end = time.perf_counter_ns() + ns
        source, target = self._own_buffers()
        while (remaining := end - time.perf_counter_ns()) > 0:
            ctypes.memmove(target, source, max(1, min(_CHUNK, int(remaining * self._bytes_per_ns))))

    def _own_buffers(self) -> tuple[ctypes.Array[Any], ctypes.Array[Any]]:
        """The calling thread's own buffers, so that concurrent loops share nothing."""
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
