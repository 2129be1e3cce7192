"""The part that each of several GPUs has of weights, gradients and optimizer state, and what exchanging them takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil

from simgpu.errors import InputError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.updates import Update, updates_of, without_gradient
from simgpu.hardware.collectives import Collective, Group, collective_ns
from simgpu.hardware.spec import NodeSpec
from simgpu.memory.transfer import NANO
from simgpu.program.data_parallel import elementwise_rate
from simgpu.trace.model import Block, BlockKind
from simgpu.units import ITEMSIZE

#: Bytes of a number that belongs to no rank alone, such as the count of an optimizer's steps.
_SCALAR = 8
#: Bytes of a number in half precision.
_HALF = 2


@dataclass(frozen=True)
class ExchangeCosts:
    """What exchanges between the GPUs of a group take on a node, nanoseconds."""

    group: Group
    node: NodeSpec

    @cached_property
    def elementwise(self) -> tuple[int, int]:
        """Bytes per second of a long elementwise kernel, and the fixed time of each."""
        return elementwise_rate(self.node.gpu)

    def collective_ns(self, kind: Collective, size: int) -> int:
        """A collective of a buffer of this many bytes."""
        return collective_ns(kind, size, self.group, self.node)

    def copy_ns(self, size: int) -> int:
        """A kernel that copies this many bytes within the GPU, by the time model's law of elementwise kernels."""
        bandwidth, overhead_ns = self.elementwise
        return overhead_ns + ceil(Fraction(2 * size * NANO, bandwidth))


@dataclass(frozen=True)
class Shards:
    """The bytes that the first of `ranks` GPUs has of what they share.

    graph: with the program's transforms. updates: of its trained weights; weights: all, with those that are not
    trained. end: the first kernel of the optimizer. rows: whether weights are divided by rows, and not by bytes.
    single: whether what is kept from one iteration to the next, and gradients once they are added up, are in single
    precision where the trace has half.

    FSDP2 divides a weight along its first dimension, rounded up, and pads the last shards
    (torch/distributed/fsdp/_fully_shard/_fsdp_param.py); one of unknown shape is divided by bytes here. Gradient and
    optimizer state of a weight are divided as it is.
    """

    graph: TaskGraph
    ranks: int
    updates: Sequence[Update]
    weights: Sequence[int]
    end: int
    rows: bool
    single: bool

    @classmethod
    def of(cls, graph: TaskGraph, ranks: int, *, rows: bool = True, single: bool = False) -> Shards:
        """Raises `InputError` as `updates_of` does, and for a weight that is trained without a known gradient."""
        updates, end = updates_of(graph)
        if lacking := without_gradient(graph):
            name = graph.blocks[lacking[0]].id
            what = f"the optimizer changes weight '{name}', whose gradient is unknown, so GPUs cannot exchange it"
            remedy = "name the gradient as the weight, with .grad"
            if f"{name}.main_grad" in graph.trace.block_by_id:
                what = f"gradients are added up in float32, as '{name}.main_grad', which GPUs do not exchange here"
                remedy = (
                    "model it without --master-weights main-grad; then fsdp with mixed_precision adds up in float32, "
                    "and `simgpu zoo build --megatron` with dp has Megatron-LM's data parallelism"
                )
            raise InputError.single(graph.trace.name, "blocks.kind", what, remedy)
        blocks = enumerate(graph.blocks)
        weights = [b for b, block in blocks if block.kind is BlockKind.WEIGHT and block.persistent]
        return cls(graph, ranks, updates, weights, end, rows, single)

    @cached_property
    def bytes_of(self) -> Mapping[int, int]:
        """By weight, gradient, optimizer state, and what only the optimizer uses, in the trace's formats."""
        graph, blocks = self.graph, self.graph.blocks
        sizes = {w: shard_bytes(blocks[w], self.ranks, rows=self.rows) for w in self.weights}
        for weight, gradient, state in self.updates:
            share = Fraction(sizes[weight], max(blocks[weight].bytes, 1))
            for b in (gradient, *(s for s in state if blocks[s].bytes > _SCALAR)):
                sizes[b] = ceil(blocks[b].bytes * share)
        total = Fraction(sum(sizes[w] for w in self.weights), max(sum(blocks[w].bytes for w in self.weights), 1))
        for b, uses in enumerate(graph.uses):
            if uses and uses[0] >= self.end and b not in sizes and blocks[b].bytes > _SCALAR:
                sizes[b] = ceil(blocks[b].bytes * total)
        return sizes

    @cached_property
    def kept(self) -> Mapping[int, int]:
        """The same in the formats in which they are kept."""
        return {b: size * self._widening(self.graph.blocks[b]) for b, size in self.bytes_of.items()}

    @property
    def lasting(self) -> tuple[int, int]:
        """Bytes of weights, gradients and optimizer state, this GPU's and those of all, as they are kept; without what
        the optimizer allocates."""
        owned = {*self.weights, *(b for update in self.updates for b in (update.gradient, *update.state))}
        whole = (self.graph.sizes[b] * self._widening(self.graph.blocks[b]) for b in owned)
        return sum(self.kept[b] for b in owned if b in self.kept), sum(whole)

    def _widening(self, block: Block) -> int:
        return 2 if self.single and block.dtype is not None and ITEMSIZE.get(block.dtype) == _HALF else 1

    @cached_property
    def of_optimizer(self) -> tuple[tuple[int, int], ...]:
        """(block, bytes) of the optimizer's state and temporaries on each GPU."""
        shared = {*self.weights, *(update.gradient for update in self.updates)}
        return tuple((b, size) for b, size in sorted(self.kept.items()) if b not in shared)

    def padded(self, blocks: Iterable[int]) -> int:
        """Bytes of a buffer with the shards of all GPUs."""
        return self.ranks * sum(self.bytes_of[b] for b in blocks)

    def durations(self, fixed_ns: int) -> tuple[tuple[int, int], ...]:
        """(kernel, ns) of the optimizer's kernels, in proportion to the bytes that they access.

        fixed_ns: of each kernel, which does not become shorter.
        """
        graph, sizes = self.graph, self.graph.sizes
        times = []
        for k in range(self.end, len(graph.kernels)):
            accessed = (*graph.reads[k], *graph.writes[k])
            before = sum(sizes[b] for b in accessed)
            left = sum(self.kept.get(b, sizes[b]) for b in accessed)
            if before:
                whole = graph.durations[k]
                times.append((k, max(ceil(Fraction(whole * left, before)), min(whole, fixed_ns))))
        return tuple(times)


def shard_bytes(block: Block, ranks: int, *, rows: bool = True) -> int:
    """Bytes of a block's shard on the first GPU. rows: whole rows, where its shape is known.

    >>> weight = Block("w", 400, BlockKind.WEIGHT, shape=(10, 10))
    >>> shard_bytes(weight, 4), shard_bytes(Block("v", 401, BlockKind.WEIGHT), 4)
    (120, 101)
    """
    count = block.shape[0] if block.shape and rows else 0
    if count and block.bytes % count == 0:
        return -(-count // ranks) * (block.bytes // count)
    return -(-block.bytes // ranks)
