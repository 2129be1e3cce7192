"""Operations, bytes and duration of a kernel at another batch size.

Each is the recorded value, scaled by the ratio of the modelled values at the new and at the recorded batch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

from simgpu.errors import InputError
from simgpu.trace.model import AlgorithmChoice, Block, BlockKind, Kernel, Phase, Trace
from simgpu.units import ITEMSIZE
from simgpu.workloads.rescale.products import Rebuilder
from simgpu.workloads.rescale.samples import Sides, sample_sides
from simgpu.workloads.timemodel.kinds import kind_of
from simgpu.workloads.timemodel.operation import Direction, Operation, OperationKind
from simgpu.workloads.timemodel.prices import AlgorithmCost, Prices, algorithm_costs

_PRODUCTS = (OperationKind.CONVOLUTION, OperationKind.GEMM, OperationKind.ATTENTION)
_PARTLY_READ = (OperationKind.GATHER, OperationKind.COPY)


@dataclass(frozen=True, slots=True)
class Rescaled:
    """A kernel at the new batch. workspace: bytes, 0 if it needs none."""

    duration_ns: int
    flops: int | None
    dram_bytes: int | None
    choices: tuple[AlgorithmChoice, ...]
    workspace: int


@dataclass
class Rescaler:
    """Rescales the kernels of a trace to another batch with a time model.

    unknown: ids of products of unknown shape; they are scaled by operations and bytes.
    without_blocks: ids of kernels without recorded blocks; they are scaled in proportion to the batch.
    """

    trace: Trace
    batch: int
    prices: Prices
    unknown: set[str] = field(default_factory=set)
    without_blocks: set[str] = field(default_factory=set)
    _results: dict[Hashable, Rescaled] = field(default_factory=dict)

    @cached_property
    def sides(self) -> Sides:
        """The blocks that hold samples, and the dimension that does."""
        return sample_sides(self.trace)

    @cached_property
    def _rebuilder(self) -> Rebuilder:
        return Rebuilder(self.sides)

    @cached_property
    def _blocks(self) -> dict[str, Block]:
        return dict(self.trace.block_by_id)

    @cached_property
    def _duration_ns(self) -> Callable[[Operation], int]:
        """The modelled duration of an operation, cached: networks repeat their layers."""
        return cache(self.prices.duration_ns)

    @cached_property
    def _ways_of(self) -> Callable[[tuple[Operation, ...]], list[AlgorithmCost]]:
        """The modelled ways to run a kernel with these operations, cached."""
        return cache(lambda work: algorithm_costs(self.prices, work))

    @cached_property
    def _choices(self) -> dict[str, list[AlgorithmChoice]]:
        result: dict[str, list[AlgorithmChoice]] = {}
        for choice in self.trace.algorithms:
            result.setdefault(choice.kernel, []).append(choice)
        return result

    def size(self, block: Block) -> int:
        """Bytes of a block at the new batch, other than a workspace."""
        return self._in_proportion(block.bytes) if block.id in self.sides else block.bytes

    def kernel(self, kernel: Kernel) -> Rescaled:
        """The kernel at the new batch; networks repeat their layers, so equal kernels are rescaled once."""
        if kernel.id in self._choices or kind_of(kernel.op) in _PRODUCTS:
            return self._rescaled(kernel)
        likeness = self._likeness(kernel)
        result = self._results.get(likeness)
        if result is None:
            result = self._rescaled(kernel)
            if kernel.id not in self.unknown and kernel.id not in self.without_blocks:
                self._results[likeness] = result
        return result

    def _likeness(self, kernel: Kernel) -> Hashable:
        """All that the result depends on, for a kernel without products and choices of algorithms."""
        sides, blocks = self.sides, self._blocks
        read = [(each.kind, each.bytes, each.dtype, each.id in sides) for each in map(blocks.__getitem__, kernel.reads)]
        written = [
            (each.kind, each.bytes, each.dtype, each.id in sides, each.id in kernel.reads)
            for each in self._written(kernel)
        ]
        numbers = kernel.duration_ns, kernel.flops, kernel.dram_bytes
        return kernel.op, kernel.phase, numbers, tuple(read), tuple(written)

    def _rescaled(self, kernel: Kernel) -> Rescaled:
        choices = self._choices.get(kernel.id, [])
        workspace = sum(block.bytes for block in self._written(kernel) if block.kind is BlockKind.WORKSPACE)
        if not self._grows(kernel):
            return Rescaled(kernel.duration_ns, kernel.flops, kernel.dram_bytes, tuple(choices), workspace)
        old, new = self._operations(kernel)
        ratio = self._ratio(kernel, old, new)
        flops = None if kernel.flops is None else scaled(kernel.flops, *_flops(old, new))
        dram = None if kernel.dram_bytes is None else self._moved(kernel)
        priced = self._priced_choices(kernel, choices, old, new, ratio)
        chosen = _chosen(kernel, workspace, choices, priced)
        if chosen is not None:
            return Rescaled(chosen.duration_ns, flops, dram, priced, chosen.workspace_bytes)
        duration = scaled(kernel.duration_ns, *ratio)
        same_workspace = {each.algorithm for each in choices if each.workspace_bytes == workspace}
        needed = {each.workspace_bytes for each in priced if each.algorithm in same_workspace}
        return Rescaled(
            duration, flops, dram, priced, needed.pop() if len(needed) == 1 else self._in_proportion(workspace)
        )

    def _in_proportion(self, number: int) -> int:
        return scaled(number, self.batch, self.trace.info.batch)

    def _written(self, kernel: Kernel) -> list[Block]:
        return [self._blocks[name] for name in kernel.writes]

    def _grows(self, kernel: Kernel) -> bool:
        """Whether the kernel depends on the batch: it writes blocks and accesses samples.

        A kernel without recorded blocks does unless it belongs to the optimizer.
        """
        if not kernel.reads and not kernel.writes:
            return kernel.phase is not Phase.OPTIMIZER
        return bool(kernel.writes) and any(name in self.sides for name in (*kernel.reads, *kernel.writes))

    def _operations(self, kernel: Kernel) -> tuple[list[Operation], list[Operation]]:
        """The kernel's operations at the recorded batch and at the new one."""
        kind = kind_of(kernel.op)
        if kind in _PRODUCTS:
            reads = [self._blocks[name] for name in kernel.reads]
            result = self._rebuilder.products_of(kernel, reads, self._written(kernel))
            if result is not None:
                old = [each.operation for each in result]
                new = [each.at(self.batch, self.trace.info.batch) for each in result]
                if len(result) == 1 and kernel.dram_bytes is not None:
                    return [replace(old[0], bytes=kernel.dram_bytes)], [replace(new[0], bytes=self._moved(kernel))]
                return old, new
            self.unknown.add(kernel.id)
        return [self._plain(kernel, kind, new=False)], [self._plain(kernel, kind, new=True)]

    def _plain(self, kernel: Kernel, kind: OperationKind, *, new: bool) -> Operation:
        """The operation of a kernel described only by its operations and bytes."""
        results, largest = self._values(kernel, new=new)
        dtype = next((block.dtype for block in self._written(kernel) if block.dtype), "float32")
        if new:
            moved = self._moved(kernel)
            flops = self._flops(kernel, max(results, largest))
        else:
            moved, flops = kernel.dram_bytes or self._counted(kernel, new=False), kernel.flops or 0
        backward = kernel.phase is Phase.BACKWARD
        direction = Direction.BACKWARD_DATA if backward else Direction.FORWARD
        return Operation(kind, flops, moved, max(1, results), direction, dtype=dtype)

    def _values(self, kernel: Kernel, *, new: bool) -> tuple[int, int]:
        """Number of values that a kernel produces, and of the largest block that it reads."""

        def count(name: str) -> int:
            block = self._blocks[name]
            size = self.size(block) if new else block.bytes
            return size // ITEMSIZE.get(block.dtype or "float32", ITEMSIZE["float32"])

        created = [name for name in kernel.writes if self._blocks[name].kind is not BlockKind.WORKSPACE]
        return sum(map(count, created)), max(map(count, kernel.reads), default=0)

    def _flops(self, kernel: Kernel, values: int) -> int:
        """Operations at the new batch: the recorded number per value if that is an integer, else in proportion."""
        before = max(self._values(kernel, new=False))
        flops = kernel.flops or 0
        return flops // before * values if before and flops % before == 0 else self._in_proportion(flops)

    def _moved(self, kernel: Kernel) -> int:
        """Bytes moved at the new batch; the share of blocks without samples does not change.

        A gather and a copy read only some rows, or a part, of a block without samples.
        """
        if kernel.dram_bytes is None:
            return self._counted(kernel, new=True)
        names = [*kernel.reads, *kernel.writes]
        if kind_of(kernel.op) in _PARTLY_READ:
            names = [name for name in kernel.writes if name not in kernel.reads]
        blocks = [self._blocks[name] for name in names if name not in self.sides]
        stays = sum(block.bytes for block in blocks if block.kind is not BlockKind.WORKSPACE)
        grows = max(0, kernel.dram_bytes - stays)
        return kernel.dram_bytes - grows + self._in_proportion(grows)

    def _counted(self, kernel: Kernel, *, new: bool) -> int:
        """Bytes of all blocks, each read once and written once; a block changed in place counts twice."""
        partly = kind_of(kernel.op) in _PARTLY_READ
        reads = [name for name in kernel.reads if not partly or name in self.sides]
        blocks = [self._blocks[name] for name in (*reads, *kernel.writes)]
        return sum(self.size(b) if new else b.bytes for b in blocks if b.kind is not BlockKind.WORKSPACE)

    def _ratio(self, kernel: Kernel, old: Sequence[Operation], new: Sequence[Operation]) -> tuple[int, int]:
        """Modelled durations at the new and at the recorded batch: numerator and denominator of the scale factor."""
        if not kernel.reads and not kernel.writes:
            self.without_blocks.add(kernel.id)
            return self.batch, self.trace.info.batch
        if kernel.flops is None and kernel.id in self.unknown:
            return self.batch, self.trace.info.batch
        try:
            after, before = (sum(self._duration_ns(each) for each in work) for work in (new, old))
        except InputError:  # The time model has no rate for products of this number format.
            self.unknown.add(kernel.id)
            return self.batch, self.trace.info.batch
        return after, before

    def _priced_choices(
        self,
        kernel: Kernel,
        choices: Sequence[AlgorithmChoice],
        old: Sequence[Operation],
        new: Sequence[Operation],
        ratio: tuple[int, int],
    ) -> tuple[AlgorithmChoice, ...]:
        """The algorithms of a kernel at the new batch.

        If the recorded algorithms are those that the model has, the result has those that the model has at the new
        batch. Else it has the recorded ones, scaled by the model where it has them at both batches, else in proportion.
        """
        if not choices:
            return ()
        before, after = ({way.name: way for way in self._ways(work)} for work in (old, new))
        recorded = {choice.algorithm: choice for choice in choices}
        if after and recorded.keys() == before.keys():
            fastest = min(choices, key=lambda choice: choice.duration_ns)
            correction = (fastest.duration_ns, before[fastest.algorithm].duration_ns)
            return tuple(
                _as_priced(recorded[name], before[name], way)
                if name in recorded
                else AlgorithmChoice(kernel.id, name, scaled(way.duration_ns, *correction), way.workspace_bytes)
                for name, way in after.items()
            )
        return tuple(
            _as_priced(choice, before[name], after[name])
            if name in before and name in after
            else AlgorithmChoice(
                kernel.id, name, scaled(choice.duration_ns, *ratio), self._in_proportion(choice.workspace_bytes)
            )
            for name, choice in recorded.items()
        )

    def _ways(self, work: Sequence[Operation]) -> list[AlgorithmCost]:
        try:
            return self._ways_of(tuple(work))
        except InputError:
            return []


def scaled(value: int, numerator: int, denominator: int) -> int:
    """value x numerator / denominator, rounded half up; the value unchanged if the denominator is 0.

    >>> scaled(10, 3, 4), scaled(7, 1, 0)
    (8, 7)
    """
    return (2 * value * numerator + denominator) // (2 * denominator) if denominator else value


def _flops(old: Sequence[Operation], new: Sequence[Operation]) -> tuple[int, int]:
    return sum(each.flops for each in new), sum(each.flops for each in old)


def _as_priced(choice: AlgorithmChoice, before: AlgorithmCost, after: AlgorithmCost) -> AlgorithmChoice:
    """A recorded choice, scaled by the ratio of the modelled costs."""
    return AlgorithmChoice(
        choice.kernel,
        choice.algorithm,
        scaled(choice.duration_ns, after.duration_ns, before.duration_ns),
        scaled(choice.workspace_bytes, after.workspace_bytes, before.workspace_bytes),
    )


def _chosen(
    kernel: Kernel, workspace: int, choices: Sequence[AlgorithmChoice], priced: Sequence[AlgorithmChoice]
) -> AlgorithmChoice | None:
    """The algorithm that the kernel runs at the new batch: the fastest if it ran the fastest, else the same.

    None if no algorithm has the recorded duration and workspace, or if the new batch does not have that algorithm.
    """
    ran = [each for each in choices if (each.duration_ns, each.workspace_bytes) == (kernel.duration_ns, workspace)]
    if not ran:
        return None
    if ran[0].duration_ns == min(each.duration_ns for each in choices):
        return min(priced, key=lambda each: (each.duration_ns, each.workspace_bytes))
    return next((each for each in priced if each.algorithm == ran[0].algorithm), None)
