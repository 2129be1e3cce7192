"""Clocks for durations: the host's for the CPU, CUDA events for a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Marks points in time; durations are read after all marks are set."""

    def mark(self) -> Any:
        """Returns a mark of the current time."""

    def durations(self, pairs: Sequence[tuple[Any, Any]]) -> list[int]:
        """Returns the nanoseconds from the first to the second mark of each pair."""


class HostClock:
    """The host's monotonic clock, for devices whose operators end before their call returns.

    >>> clock = HostClock()
    >>> clock.durations([(5, 12)])
    [7]
    """

    mark: Callable[[], int] = staticmethod(time.perf_counter_ns)

    def durations(self, pairs: Sequence[tuple[int, int]]) -> list[int]:
        """Returns the nanoseconds between the marks."""
        return [end - begin for begin, end in pairs]


class CudaClock:
    """Events on the current CUDA stream, recorded without waiting and read after one synchronization."""

    def __init__(
        self,
        new_event: Callable[[], Any] | None = None,
        synchronize: Callable[[], None] | None = None,
    ) -> None:
        self._new_event = new_event or (lambda: torch.cuda.Event(enable_timing=True))
        self._synchronize = synchronize or torch.cuda.synchronize

    def mark(self) -> Any:
        """Returns an event recorded after everything launched so far."""
        event = self._new_event()
        event.record()
        return event

    def durations(self, pairs: Sequence[tuple[Any, Any]]) -> list[int]:
        """Returns the nanoseconds between the events, which report milliseconds in floating point."""
        self._synchronize()
        return [round(begin.elapsed_time(end) * 1_000_000) for begin, end in pairs]
