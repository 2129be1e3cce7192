"""How much device memory a CPU holds at most while something runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from simgpu.validation.devices.device import Peak

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
