"""Keeping a core busy for a given time without keeping other threads from running."""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any

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
        found: tuple[ctypes.Array[Any], ctypes.Array[Any]] | None = getattr(self._buffers, "pair", None)
        if found is None:
            found = self._buffers.pair = (ctypes.create_string_buffer(_CHUNK), ctypes.create_string_buffer(_CHUNK))
        return found

    def _rate(self) -> float:
        source, target = self._own_buffers()
        times = []
        for _ in range(_CALIBRATION_ROUNDS):
            begin = time.perf_counter_ns()
            ctypes.memmove(target, source, _CHUNK)
            times.append(time.perf_counter_ns() - begin)
        return _CHUNK / max(1, min(times))
