"""Blocks of a profile joined with the execution trace of the same run: the storages of its tensors.

Joining: both recordings number the operator calls. Newer profiles have this number as Record function id, equal to the
node's rf_id; in some recordings the External id is equal to it. If neither matches, operators are paired by order: both
recordings list the operators of each thread, so the sequences of names must be equal. A join is valid only if every
operator that launched a kernel has a node of the same name; otherwise the recordings are of different runs.

How storages become blocks:
- Tensors with the same storage id share a block, but ids are reused once a storage is freed. An operator's output is a
  new block if memory was allocated for it in the operator; otherwise, if the storage was neither an input of the
  operator nor created by an operator inside it.
- Without memory events, only the second condition applies. In addition, a tensor that first appears inside another
  operator is a new block if it is changed there, or if it is larger than the block of its storage.
- With memory events, a storage whose memory was freed is a new block when it is used again. An output is matched to the
  tightest fit among its operator's allocations that still exist at the operator's end.
- An input that no operator returned before is matched to an allocation of an enclosing operator, if one fits.
- Any other block without an earlier output is old: it existed before the iteration.
- The size of a block is the largest extent of its tensors, at most its allocation. Views do not count, because an
  expanded view has more elements than its memory.

Readers and writers: the recording does not split operators, so all kernels that an operator launched directly read its
inputs, and write what it changed or returned, if that memory was allocated at their launch. So an input is needed until
the operator's last kernel, and a result exists from the first kernel after its allocation. An operator without tensors
counts as part of its enclosing operator. An in-place kernel does not read memory that was not written before. A
gradient that autograd accumulates is a weight gradient.

Allocations without a tensor are scratch memory of their operator, as in `lone_blocks`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from simgpu.errors import InputError
from simgpu.importers.drafts import StorageNames, kind_of_new, kind_of_old
from simgpu.importers.execution_trace import ExecutionTrace, Node, Tensor
from simgpu.importers.kineto.attribution import Attribution
from simgpu.importers.kineto.blocks import (
    Allocation,
    DeviceMemory,
    Draft,
    Moments,
    held_before,
    is_scratch,
    phase_of,
    scratch_kind,
)
from simgpu.importers.kineto.profile import Op
from simgpu.trace.model import BlockKind, Phase

#: The allocator rounds sizes up to a multiple of this, in bytes.
_PIECE = 512


def joined_drafts(attribution: Attribution, nodes: Nodes, memory: DeviceMemory | None, moments: Moments) -> list[Draft]:
    """Drafts of the storages that kernels use, of scratch memory, and of memory from before the iteration."""
    storages = Storages(attribution, nodes, memory)
    set_kinds(storages, attribution.samples())
    drafts = [storage.draft for storage in storages.all if storage.draft.is_used]
    if memory is None:
        return drafts
    _match_freed(drafts, memory, attribution)
    for number, allocation in enumerate(memory.allocations, start=1):
        claim = storages.claimed.get(allocation)
        if moments.is_idle(allocation) or (claim is not None and claim.draft.is_used):
            continue
        draft = Draft(f"m{number}", allocation.bytes, allocation=allocation, writers=set(moments.writers(allocation)))
        if is_scratch(draft, moments):
            draft.kind = scratch_kind(draft)
        drafts.append(draft)
    matched = {draft.freed for draft in drafts if draft.freed is not None}
    rest = replace(memory, freed=tuple(pair for pair in memory.freed if pair[1] not in matched))
    named = sum(-(-draft.bytes // _PIECE) * _PIECE for draft in drafts if draft.persistent)
    return held_before(rest, named) + drafts


def _match_freed(drafts: Sequence[Draft], memory: DeviceMemory, attribution: Attribution) -> None:
    """Set when old blocks were freed in the iteration, if size and last use identify the block uniquely."""
    for size, at in memory.freed:
        fitting = [
            draft
            for draft in drafts
            if draft.persistent
            and draft.freed is None
            and -(-draft.bytes // _PIECE) * _PIECE == size
            and all(attribution.launched[use].at <= at for use in draft.readers | draft.writers)
        ]
        if len(fitting) == 1:
            fitting[0].freed = at


#: The node of each operator of an iteration, by position; operators missing from the execution trace have none.
Nodes = dict[int, Node]


def join(attribution: Attribution, recorded: ExecutionTrace) -> Nodes:
    """Returns the nodes of an iteration's operators. Raises `InputError` if the recordings are of different runs."""
    launchers = {launched.op for launched in attribution.launched if launched.op >= 0}
    if not launchers:
        what = "does not record which operators launched the kernels, so it cannot be joined"
        remedy = "record the profile with ProfilerActivity.CPU as well"
        raise InputError.single(attribution.profile.path, "", what, remedy)
    ways: tuple[Callable[[], Nodes], ...] = (
        lambda: _by_number(attribution.ops, recorded, lambda op: op.function),
        lambda: _by_number(attribution.ops, recorded, lambda op: op.external),
        lambda: _by_order(attribution.ops, recorded),
    )
    most = 0
    for find_nodes in ways:
        nodes = find_nodes()
        joined = sum(op in nodes for op in launchers)
        if joined == len(launchers):
            return nodes
        most = max(most, joined)
    what = (
        f"does not match {attribution.profile.path.name}: it contains only {most} of {len(launchers)} operators that "
        "launched kernels"
    )
    remedy = "use the execution trace of the same run and the same iteration"
    raise InputError.single(recorded.path, "", what, remedy)


def _by_number(ops: Sequence[Op], recorded: ExecutionTrace, number: Callable[[Op], int]) -> Nodes:
    by_function = {node.function: node for node in recorded.nodes}
    result = {}
    for position, op in enumerate(ops):
        node = by_function.get(number(op))
        if node is not None and node.name == op.name:
            result[position] = node
    return result


def _by_order(ops: Sequence[Op], recorded: ExecutionTrace) -> Nodes:
    """Pairs the nodes of a thread with the operators of a thread that has the same names in the same order."""
    threads: dict[object, list[int]] = defaultdict(list)
    for position, op in enumerate(ops):
        threads[op.thread].append(position)
    for positions in threads.values():
        positions.sort(key=lambda position: (ops[position].external, ops[position].start, -ops[position].end))
    rows: dict[int, list[Node]] = defaultdict(list)
    for node in recorded.nodes:
        rows[node.thread].append(node)
    result: Nodes = {}
    for row in rows.values():
        names = [node.name for node in row]
        for positions in threads.values():
            if positions[0] not in result and names == [ops[position].name for position in positions]:
                result.update(zip(positions, row, strict=True))
                break
    return result


_ACCUMULATE = "torch::autograd::AccumulateGrad"


def set_kinds(storages: Storages, batch: int | None) -> None:
    """Set the kind of every storage's draft. batch: samples per iteration; None if unknown."""
    attribution = storages.attribution
    accumulated = {
        id(storage)
        for position, node in storages.nodes.items()
        if node.name == _ACCUMULATE
        for _, storage in storages.named[position].inputs
    }
    for storage in storages.all:
        draft = storage.draft
        reading = _phases(draft.readers, attribution)
        if draft.persistent:
            writing = _phases(draft.writers, attribution)
            draft.kind = kind_of_old(reading, writing, storage.arguments, draft.shape, batch)
        elif id(storage) in accumulated:
            draft.kind = BlockKind.WEIGHT_GRADIENT
        else:
            draft.kind = kind_of_new(phase_of(draft, attribution), reading)


def _phases(positions: Iterable[int], attribution: Attribution) -> set[Phase]:
    return {attribution.launched[position].phase for position in positions}


#: Maximum bytes by which a block of PyTorch's allocator may exceed the request without being split.
_SLACK = 20 << 20

#: Operators that allocate memory for one of their inputs.
_ALLOCATES_INPUT = ("aten::resize_", "aten::resize_as_", "aten::set_")


@dataclass(slots=True, eq=False)
class Storage:
    """A block and its tensors.

    born: when it was allocated or first used, ns.
    arguments: names of the operator arguments through which it is passed.
    tensors, views: ids of its tensors, and of those that are views.
    """

    draft: Draft
    born: int
    arguments: set[str] = field(default_factory=set)
    tensors: set[int] = field(default_factory=set)
    views: set[int] = field(default_factory=set)

    def see(self, tensor: Tensor) -> None:
        """Add a tensor to the block."""
        self.tensors.add(tensor.tensor)
        if tensor.argument:
            self.arguments.add(tensor.argument)
        draft = self.draft
        if tensor.tensor in self.views:
            return
        limit = draft.allocation.bytes if draft.allocation is not None else tensor.bytes
        if draft.shape is None or min(tensor.bytes, limit) > draft.bytes:
            draft.bytes = max(draft.bytes, min(tensor.bytes, limit))
            draft.shape, draft.dtype = tensor.shape, tensor.dtype or None


@dataclass(slots=True)
class _Named:
    """An operator's input and output tensors with their storages."""

    inputs: list[tuple[Tensor, Storage]] = field(default_factory=list)
    outputs: list[tuple[Tensor, Storage]] = field(default_factory=list)


class Storages:
    """Follows the joined operators in time and assigns storages to blocks."""

    def __init__(self, attribution: Attribution, nodes: Nodes, memory: DeviceMemory | None) -> None:
        self.attribution = attribution
        self.nodes = nodes
        self.memory = memory
        self.all: list[Storage] = []
        self.named: dict[int, _Named] = {position: _Named() for position in nodes}
        self.claimed: dict[Allocation, Storage] = {}
        self._current: dict[int, Storage] = {}
        self._names = StorageNames()
        self._in_op = self._allocations_by_operator()
        for position, is_end in self._moments():
            if is_end:
                self._end(position)
            else:
                self._start(position)
        for position, kernels in self._launched_by().items():
            self._set_readers_and_writers(position, kernels)

    def _allocations_by_operator(self) -> dict[int, list[Allocation]]:
        """Allocations inside each operator, ordered by time."""
        result: dict[int, list[Allocation]] = {}
        for allocation in self.memory.allocations if self.memory is not None else ():
            for op in self.attribution.operators(allocation.op):
                result.setdefault(op, []).append(allocation)
        return result

    def _moments(self) -> list[tuple[int, bool]]:
        """Starts and ends of the joined operators, ordered by time.

        At the same time: ends (inner before outer), then starts (outer before inner), then ends of operators with zero
        duration.
        """
        ops, result = self.attribution.ops, []
        for position, node in self.nodes.items():
            op = ops[position]
            result.append(((op.start, 1, node.number), position, False))
            result.append(((op.end, 2 if op.end == op.start else 0, -node.number), position, True))
        result.sort()
        return [(position, is_end) for _, position, is_end in result]

    def _start(self, position: int) -> None:
        op, node, named = self.attribution.ops[position], self.nodes[position], self.named[position]
        for tensor in node.inputs:
            storage = self._current.get(tensor.storage)
            if storage is None or not self._is_there(storage, op.start):
                claim = self._claim_around(position, tensor)
                if claim is None and tensor.changed and node.name in _ALLOCATES_INPUT:
                    continue
                storage = self._new(tensor, op.start, claim, old=not self._is_new_inside(position, tensor, None))
            elif self._is_new_inside(position, tensor, storage):
                storage = self._new(tensor, op.start, None, old=False)
            named.inputs.append((tensor, storage))

    def _end(self, position: int) -> None:
        op, node, named = self.attribution.ops[position], self.nodes[position], self.named[position]
        inputs = {(id(storage), tensor.tensor) for tensor, storage in named.inputs}
        input_storages = {storage for storage, _ in inputs}
        for tensor in node.outputs:
            storage = self._current.get(tensor.storage)
            if storage is None or not self._is_there(storage, op.end):
                storage = self._new(tensor, op.end, self._claim(position, tensor), old=self.memory is not None)
            elif id(storage) not in input_storages and storage.born < op.start:
                claim = self._claim(position, tensor)
                if claim is not None or self.memory is None:
                    storage = self._new(tensor, op.end, claim, old=False)
            elif id(storage) in input_storages and (id(storage), tensor.tensor) not in inputs:
                storage.views.add(tensor.tensor)
            named.outputs.append((tensor, storage))
        for tensor, storage in (*named.inputs, *named.outputs):
            storage.see(tensor)

    def _is_new_inside(self, position: int, tensor: Tensor, storage: Storage | None) -> bool:
        """Without memory events: whether a tensor that first appears inside another operator is new memory.

        It is, if it is changed there, or if it is larger than the storage's block.
        """
        around = self.attribution.parent[position]
        if self.memory is not None or around < 0 or self.attribution.ops[around].is_annotation:
            return False
        if storage is None:
            return tensor.changed
        is_first = tensor.tensor not in storage.tensors
        return is_first and (tensor.changed or tensor.bytes > storage.draft.bytes)

    def _is_there(self, storage: Storage, moment: int) -> bool:
        allocation = storage.draft.allocation
        return allocation is None or allocation.freed is None or moment <= allocation.freed

    def _claim(self, position: int, tensor: Tensor) -> Allocation | None:
        """For an operator's output: an allocation inside the operator that still exists at its end."""
        return self._best(self._in_op.get(position, []), tensor, self.attribution.ops[position].end)

    def _claim_around(self, position: int, tensor: Tensor) -> Allocation | None:
        """For an input that no operator used before: the latest fitting allocation of an enclosing operator."""
        start, own = self.attribution.ops[position].start, set(self._in_op.get(position, ()))
        for around in self.attribution.operators(self.attribution.parent[position]):
            latest_first = [a for a in reversed(self._in_op.get(around, [])) if a not in own]
            if (claim := self._best(latest_first, tensor, start)) is not None:
                return claim
        return None

    def _best(self, allocations: list[Allocation], tensor: Tensor, moment: int) -> Allocation | None:
        """The first best-fitting allocation for a tensor among the unclaimed ones that exist at a moment."""
        fitting = [
            allocation
            for allocation in allocations
            if allocation not in self.claimed
            and allocation.is_held(moment)
            and tensor.bytes <= allocation.bytes <= tensor.bytes + _SLACK
        ]
        return min(fitting, key=lambda allocation: allocation.bytes, default=None)

    def _new(self, tensor: Tensor, at: int, allocation: Allocation | None, old: bool) -> Storage:
        """A new block in a storage. old: whether, without an allocation, it existed before the iteration."""
        name = self._names.next(tensor.storage)
        draft = Draft(name, 0, persistent=old and allocation is None, allocation=allocation)
        storage = Storage(draft, at if allocation is None else allocation.at)
        storage.see(tensor)
        if allocation is not None:
            self.claimed[allocation] = storage
        self.all.append(storage)
        self._current[tensor.storage] = storage
        return storage

    def _set_readers_and_writers(self, position: int, kernels: list[int]) -> None:
        """The kernels of an operator read its inputs and write what it changed or created."""
        named = self.named[position]
        inputs = {id(storage) for _, storage in named.inputs}
        read = [storage for tensor, storage in named.inputs if not tensor.overwritten]
        changed = [storage for tensor, storage in named.inputs if tensor.changed]
        created = [storage for _, storage in named.outputs if id(storage) not in inputs]
        for kernel in kernels:
            for storage in self._allocated(read, kernel):
                storage.draft.readers.add(kernel)
            for storage in self._allocated([*changed, *created], kernel):
                storage.draft.writers.add(kernel)

    def _launched_by(self) -> dict[int, list[int]]:
        """Kernels that an operator launched directly, or through inner operators without tensors."""
        result: dict[int, list[int]] = {}
        for op, kernels in self.attribution.launched_by.items():
            for around in self.attribution.chain(op):
                if around in self.nodes and (self.nodes[around].inputs or self.nodes[around].outputs):
                    result.setdefault(around, []).extend(kernels)
                    break
        return result

    def _allocated(self, storages: Iterable[Storage], kernel: int) -> list[Storage]:
        """The storages whose memory is allocated when a kernel is launched."""
        at = self.attribution.launched[kernel].at
        return [s for s in storages if s.draft.allocation is None or s.draft.allocation.is_held(at)]
