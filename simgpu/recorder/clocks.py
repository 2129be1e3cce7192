"""The two clocks: the host's for the CPU, the device's own events for a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Marks points in time; what lies between two marks is read when everything has been marked."""

    def mark(self) -> Any:
        """A point in time, whatever stands for it."""

    def durations(self, pairs: Sequence[tuple[Any, Any]]) -> list[int]:
        """Nanoseconds from the first to the second mark of each pair."""


class HostClock:
    """The host's monotonic clock: right where an operator has ended when its call returns.

    >>> clock = HostClock()
    >>> clock.durations([(5, 12)])
    [7]
    """

    mark: Callable[[], int] = staticmethod(time.perf_counter_ns)

    def durations(self, pairs: Sequence[tuple[int, int]]) -> list[int]:
        """Nanoseconds between the marks."""
        return [end - begin for begin, end in pairs]


class CudaClock:
    """Events on the current CUDA stream: recorded without waiting, read after one synchronise."""

    def __init__(
        self,
        new_event: Callable[[], Any] | None = None,
        synchronize: Callable[[], None] | None = None,
    ) -> None:
        self._new_event = new_event or (lambda: torch.cuda.Event(enable_timing=True))
        self._synchronize = synchronize or torch.cuda.synchronize

    def mark(self) -> Any:
        """An event recorded behind everything launched so far."""
        event = self._new_event()
        event.record()
        return event

    def durations(self, pairs: Sequence[tuple[Any, Any]]) -> list[int]:
        """Nanoseconds between the events, which report milliseconds in floating point."""
        self._synchronize()
        return [round(begin.elapsed_time(end) * 1_000_000) for begin, end in pairs]
