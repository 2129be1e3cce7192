"""A training loop that a published row describes, and the peaks of memory that it would have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.nn.attention import SDPBackend, sdpa_kernel

from simgpu.hardware.nodes import load_node
from simgpu.memory.caching.allocator import CachingAllocator
from simgpu.memory.caching.blocks import MemoryBlock
from simgpu.memory.caching.device import ExclusiveDevice
from simgpu.memory.caching.settings import AllocatorSettings
from simgpu.recorder.requests import record_requests

#: Bytes, more than any device has.
PLENTY = 2**42


@dataclass(frozen=True)
class Loop:
    """A loop for `simgpu.record_requests`. factory: of the model, inputs, targets and loss for a batch.

    sequences: of a micro-batch. gradients_apart: whether gradients of weights are allocated on a stream of their own,
    whose cached memory nothing else uses. expandable: whether PyTorch's allocator has expandable segments. The other
    fields are those of `record_requests`.
    """

    factory: Callable[[int], tuple[Any, ...]]
    sequences: int
    optimizer: Callable[[Any], Any]
    micro_batches: int = 1
    iterations: int = 2
    zero_grad: str = "start"
    hold_output: bool = False
    grad_scaler: bool = False
    gradients_apart: bool = False
    expandable: bool = False


@contextmanager
def attention_as_published() -> Iterator[None]:
    """Inside the context, PyTorch does not take cuDNN's attention.

    No row states it, and wheels of PyTorch before 2.11 bring no cuDNN that is new enough for PyTorch to prefer it.
    """
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        yield


def peaks_of(loop: Loop, node: str) -> tuple[int, int]:
    """The peaks of allocated and of reserved bytes on a node's GPU, as if it had memory enough."""
    with attention_as_published():
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
    allocator = CachingAllocator(ExclusiveDevice(PLENTY), AllocatorSettings(expandable_segments=loop.expandable))
    held: dict[int, MemoryBlock | None] = {}
    for number in requests.order:
        if number >= 0:
            request = requests.requests[number]
            stream = int(loop.gradients_apart and request.category == "weight_gradient")
            held[number] = allocator.allocate(request.size, stream)
        elif (block := held.pop(~number)) is not None:
            allocator.free(block)
    return allocator.statistics.allocated_peak, allocator.statistics.reserved_peak
