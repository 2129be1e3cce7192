"""The recorded memory against PyTorch's own memory profiler, which intercepts no operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch.profiler import ProfilerActivity, profile

from simgpu.recorder import BUILT_IN_MODELS, record
from simgpu.recorder.iteration import NoWatcher, run_iteration
from simgpu.recorder.workload import find_factory, make_workload
from simgpu.trace.check import check_trace
from tests.recorder.live_bytes import live_bytes
from tests.recorder.variants import small
from tests.sets import slow_except

#: Operators that allocate and free memory inside themselves, which no tensor shows.
_WITH_SCRATCH = (
    "aten::convolution",
    "aten::convolution_backward",
    "aten::native_batch_norm",
    "aten::native_batch_norm_backward",
    "aten::native_dropout",
    "aten::native_dropout_backward",
)
#: Python numbers are wrapped in tensors of up to 8 bytes that live within one operator.
_NUMBER_BYTES = 8


def _below(events: Any) -> Iterator[Any]:
    for event in events:
        yield event
        yield from _below(event.children)


def _allocations(name: str, batch: int) -> list[int]:
    """Bytes allocated (+) and freed (-) in one unwatched iteration, without the scratch of single operators."""
    factory = small(name)
    created = find_factory(factory) if isinstance(factory, str) else factory
    workload = make_workload(name, created, batch).to(torch.device("cpu"))
    optimizer = torch.optim.SGD(workload.module.parameters(), lr=0.01, momentum=0.9)
    for _ in range(2):
        run_iteration(workload, optimizer, NoWatcher())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run_iteration(workload, optimizer, NoWatcher())
    events = list(_below(profiler.profiler.kineto_results.experimental_event_tree()))
    scratch: set[int] = set()
    for event in events:
        if event.name in _WITH_SCRATCH:
            taken: dict[int, Any] = {}
            for inner in _below(event.children):
                if inner.name == "[memory]":
                    fields = inner.extra_fields
                    if fields.alloc_size > 0:
                        taken[fields.ptr] = inner
                    elif fields.ptr in taken:
                        scratch |= {id(taken.pop(fields.ptr)), id(inner)}
    memory = [event for event in events if event.name == "[memory]" and id(event) not in scratch]
    return [event.extra_fields.alloc_size for event in sorted(memory, key=lambda event: event.start_time_ns)]


#: ResNet-50 is left out for its long profiles: batch norm and residual additions are ResNet-20's.
PROFILED = sorted({*BUILT_IN_MODELS} - {"resnet50"})


@pytest.mark.parametrize(
    "name",
    slow_except(PROFILED, "digits-cnn", "mlp", "resnet20", "transformer", "words-lstm"),
)
def test_peak_is_the_profilers_to_the_byte(name: str) -> None:
    trace = record(small(name), batch=4, repetitions=1, warmup=1)
    assert check_trace(trace) == []
    total = peak = 0
    for size in _allocations(name, 4):
        total += size
        peak = max(peak, total)
    assert max(live_bytes(trace)) == peak


@pytest.mark.parametrize("name", slow_except(["mlp", "vgg11", "resnet20"], "mlp", "resnet20"))
def test_blocks_are_the_profilers_allocations(name: str) -> None:
    trace = record(name, batch=4, repetitions=1, warmup=1)
    created = Counter(block.bytes for block in trace.blocks if not block.persistent and block.bytes > _NUMBER_BYTES)
    assert created == Counter(size for size in _allocations(name, 4) if size > _NUMBER_BYTES)
