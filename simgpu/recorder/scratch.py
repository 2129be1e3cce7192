"""Memory that an operator takes and gives back while it runs, which no tensor ever shows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch
from torch.profiler import ProfilerActivity, profile


class ScratchMeter(Protocol):
    """Told before an operator runs, asked after it."""

    def start(self) -> None:
        """The operator is about to run."""

    def used(self) -> int:
        """Bytes the operator took next to its results and gave back."""


class NoScratch:
    """The CPU's allocator keeps no count: nothing is known at no cost, so nothing is said."""

    def start(self) -> None:
        """Nothing to do."""

    def used(self) -> int:
        """None that we know of."""
        return 0


class CudaScratch:
    """What PyTorch's CUDA allocator held at most while the operator ran, beyond what it holds afterwards.

    The allocator counts when it is asked for memory, on the host, so a device that lags behind changes nothing.
    """

    def __init__(self, device: torch.device, memory: Any = None) -> None:
        self._device = device
        self._memory = memory or torch.cuda

    def start(self) -> None:
        """Count the peak from here."""
        self._memory.reset_peak_memory_stats(self._device)

    def used(self) -> int:
        """Bytes from what is held now up to the peak."""
        held = int(self._memory.memory_allocated(self._device))
        return int(self._memory.max_memory_allocated(self._device)) - held


class ProfiledScratch:
    """What PyTorch's memory profiler saw an operator hold at most on a CPU, beyond what it holds afterwards.

    It sees what is asked of PyTorch's allocator, so not what a library allocates for itself. A profile for every
    operator is far too slow for all of them.
    """

    def __init__(self) -> None:
        # The profiler's library writes a line to stderr for every profile, unless told not to before its first.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        self._profile: Any = None

    def start(self) -> None:
        """Profile from here."""
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._profile.__enter__()

    def used(self) -> int:
        """Bytes from what is held now up to the peak."""
        self._profile.__exit__(None, None, None)
        events = _below(self._profile.profiler.kineto_results.experimental_event_tree())
        memory = sorted((event for event in events if event.name == "[memory]"), key=lambda event: event.start_time_ns)
        self._profile = None
        held = peak = 0
        for event in memory:
            held += event.extra_fields.alloc_size
            peak = max(peak, held)
        return int(peak - held)


def _below(events: Iterable[Any]) -> Iterator[Any]:
    for event in events:
        yield event
        yield from _below(event.children)


def framework_peak(device: torch.device, run: Callable[[], object], memory: Any = None) -> int | None:
    """The most memory that PyTorch's CUDA allocator held while `run` ran; None on a CPU, where it does not count.

    That is all this process holds on the device, rounded up as the allocator does.
    """
    if device.type != "cuda":
        return None
    statistics = memory or torch.cuda
    statistics.reset_peak_memory_stats(device)
    run()
    return int(statistics.max_memory_allocated(device))
