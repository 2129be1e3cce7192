"""A training loop that a published row describes, and the peaks of memory that it would have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simgpu.hardware.nodes import load_node
from simgpu.memory.caching.replay import replay
from simgpu.memory.caching.requested import allocation_trace
from simgpu.memory.caching.settings import AllocatorSettings
from simgpu.recorder.requests import record_requests

#: Bytes, more than any device has.
PLENTY = 2**42


@dataclass(frozen=True)
class Loop:
    """A loop for `simgpu.record_requests`. factory: of the model, inputs, targets and loss for a batch.

    sequences: of a micro-batch. The other fields are those of `record_requests`.
    """

    factory: Callable[[int], tuple[Any, ...]]
    sequences: int
    optimizer: Callable[[Any], Any]
    micro_batches: int = 1
    iterations: int = 2
    zero_grad: str = "start"
    hold_output: bool = False
    grad_scaler: bool = False


def peaks_of(loop: Loop, node: str) -> tuple[int, int]:
    """The peaks of allocated and of reserved bytes on a node's GPU, as if it had memory enough."""
    requests = record_requests(
        loop.factory,
        batch=loop.sequences * loop.micro_batches,
        gpu=load_node(node).gpu,
        optimizer=loop.optimizer,
        iterations=loop.iterations,
        zero_grad=loop.zero_grad,
        hold_output=loop.hold_output,
        grad_scaler=loop.grad_scaler,
        micro_batches=loop.micro_batches,
    )
    counts = replay(allocation_trace(requests), AllocatorSettings(), PLENTY).allocator.statistics
    return counts.allocated_peak, counts.reserved_peak
