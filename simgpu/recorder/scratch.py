"""Measures workspaces: memory that an operator allocates and frees while it runs, without a tensor to show for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch
from torch.profiler import ProfilerActivity, profile


class ScratchMeter(Protocol):
    """Measures the workspace of one operator at a time."""

    def start(self) -> None:
        """Called before the operator runs."""

    def used(self) -> int:
        """Called after the operator; returns the bytes that it allocated and freed, in addition to its results."""


class NoScratch:
    """Measures nothing: the CPU's allocator has no counters."""

    def start(self) -> None:
        """Nothing to do."""

    def used(self) -> int:
        """Always 0."""
        return 0


class CudaScratch:
    """The peak of PyTorch's CUDA allocator while the operator ran, minus the bytes allocated afterwards.

    The allocator counts requests on the host, so a device that lags behind does not matter.
    """

    def __init__(self, device: torch.device, memory: Any = None) -> None:
        self._device = device
        self._memory = memory or torch.cuda

    def start(self) -> None:
        """Reset the peak."""
        self._memory.reset_peak_memory_stats(self._device)

    def used(self) -> int:
        """Returns the peak bytes minus the bytes allocated now."""
        allocated = int(self._memory.memory_allocated(self._device))
        return int(self._memory.max_memory_allocated(self._device)) - allocated


class ProfiledScratch:
    """The peak that PyTorch's memory profiler reports for an operator on a CPU, minus the bytes allocated afterwards.

    It covers requests to PyTorch's allocator, not what a library allocates by other means. Profiling is too slow to
    use for every operator.
    """

    def __init__(self) -> None:
        # By default, the profiler's library writes a line to stderr for every profile.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        self._profile: Any = None

    def start(self) -> None:
        """Start profiling."""
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._profile.__enter__()

    def used(self) -> int:
        """Returns the peak bytes minus the bytes allocated now."""
        self._profile.__exit__(None, None, None)
        events = _below(self._profile.profiler.kineto_results.experimental_event_tree())
        memory = sorted((event for event in events if event.name == "[memory]"), key=lambda event: event.start_time_ns)
        self._profile = None
        allocated = peak = 0
        for event in memory:
            allocated += event.extra_fields.alloc_size
            peak = max(peak, allocated)
        return int(peak - allocated)


def _below(events: Iterable[Any]) -> Iterator[Any]:
    for event in events:
        yield event
        yield from _below(event.children)


def framework_peak(device: torch.device, run: Callable[[], object], memory: Any = None) -> int | None:
    """Returns the peak bytes of PyTorch's CUDA allocator while `run` runs; None on a CPU, which has no counters.

    The peak counts all tensors of this process on the device, rounded up by the allocator.
    """
    if device.type != "cuda":
        return None
    statistics = memory or torch.cuda
    statistics.reset_peak_memory_stats(device)
    run()
    return int(statistics.max_memory_allocated(device))
