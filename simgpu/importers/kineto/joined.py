"""All blocks of a profile that is joined with an execution trace: storages, and the memory that no tensor names.

Which node of an execution trace each operator of a profile is.

Both recordings number the calls of operators. Newer profiles hold that number (Record function id), which is the
node's rf_id; in some the External id is the same. Where neither fits, operators are paired by order: both recordings
list what each thread ran, so the names on a thread must be the same one after another. A join counts only if every
operator that launched a kernel has a node of its name; else the two are not of one run.

What the blocks of a joined recording hold.

The rules are those of every format (`simgpu.importers.drafts`), and one more: what autograd accumulates is a weight's
gradient.

Blocks of a profile joined with an execution trace: the storages behind its tensors.

Which storage is which block:
- tensors with one storage id share a block, but ids come back once a storage is gone. An operator's output begins a
  new block where memory was allocated in the operator for it, and else where the storage was neither given to the
  operator nor made by an operator inside it;
- without memory events, that second rule decides. A new block is also a tensor that appears first inside another
  operator, if it is changed there or is larger than what its storage held;
- with memory events, a storage whose memory was freed is a new block whenever it is named again, and an output takes,
  of the allocations of its operator that are still held at the operator's end, the one that fits most tightly;
- memory that an operator is given although nobody gave it back yet is what one of the operators around it allocated
  for it, if that fits;
- any other block named by no output before is old: it was there when the iteration began;
- its bytes are the furthest extent of the tensors seen in it, but never more than was allocated for it. Views do not
  count, since an expanded one has more elements than its memory.

Who reads and writes: the kernels that an operator launched itself all read what the operator was given and write
what it changed or gave back anew, as far as that memory was held when the kernel was launched: the recording does not
split an operator further. So an operand is needed until the operator's last kernel and a result exists from the first
kernel after its allocation on. An operator that names no tensors counts as part of the one around it. A kernel that
works in place on memory that nobody wrote yet does not read it.

Allocations that no tensor claims are scratch memory of their operator, as in `lone_blocks`.
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

#: The allocator gives memory in pieces of so many bytes.
_PIECE = 512


def joined_drafts(attribution: Attribution, nodes: Nodes, memory: DeviceMemory | None, moments: Moments) -> list[Draft]:
    """The storages that kernels touch, scratch memory, and what was held before."""
    storages = Storages(attribution, nodes, memory)
    set_kinds(storages, attribution.samples())
    drafts = [storage.draft for storage in storages.found if storage.draft.is_used]
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
    """Old blocks that were freed in the iteration, where size and last use leave no doubt which one it was."""
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


#: The node of each operator of an iteration, by position; operators that the execution trace left out have none.
Nodes = dict[int, Node]


def join(attribution: Attribution, recorded: ExecutionTrace) -> Nodes:
    """The nodes of an iteration's operators. Raises `InputError` where the recordings are not of one run."""
    launchers = {launched.op for launched in attribution.launched if launched.op >= 0}
    if not launchers:
        what = "does not say which operators launched the kernels, so nothing can be joined"
        remedy = "record the profile with ProfilerActivity.CPU as well"
        raise InputError.single(attribution.profile.path, "", what, remedy)
    ways: tuple[Callable[[], Nodes], ...] = (
        lambda: _by_number(attribution.ops, recorded, lambda op: op.function),
        lambda: _by_number(attribution.ops, recorded, lambda op: op.external),
        lambda: _by_order(attribution.ops, recorded),
    )
    most = 0
    for way in ways:
        nodes = way()
        joined = sum(op in nodes for op in launchers)
        if joined == len(launchers):
            return nodes
        most = max(most, joined)
    what = (
        f"does not join {attribution.profile.path.name}: of {len(launchers)} operators that launched kernels, "
        f"{most} are in it"
    )
    remedy = "give the execution trace of the same run and the same iteration"
    raise InputError.single(recorded.path, "", what, remedy)


def _by_number(ops: Sequence[Op], recorded: ExecutionTrace, number: Callable[[Op], int]) -> Nodes:
    by_function = {node.function: node for node in recorded.nodes}
    found = {}
    for position, op in enumerate(ops):
        node = by_function.get(number(op))
        if node is not None and node.name == op.name:
            found[position] = node
    return found


def _by_order(ops: Sequence[Op], recorded: ExecutionTrace) -> Nodes:
    """Nodes of a thread beside operators of a thread with the same names in the same order."""
    threads: dict[object, list[int]] = defaultdict(list)
    for position, op in enumerate(ops):
        threads[op.thread].append(position)
    for positions in threads.values():
        positions.sort(key=lambda position: (ops[position].external, ops[position].start, -ops[position].end))
    rows: dict[int, list[Node]] = defaultdict(list)
    for node in recorded.nodes:
        rows[node.thread].append(node)
    found: Nodes = {}
    for row in rows.values():
        names = [node.name for node in row]
        for positions in threads.values():
            if positions[0] not in found and names == [ops[position].name for position in positions]:
                found.update(zip(positions, row, strict=True))
                break
    return found


_ACCUMULATE = "torch::autograd::AccumulateGrad"


def set_kinds(storages: Storages, batch: int | None) -> None:
    """Give every storage's draft its kind. batch: samples in the iteration, None where unknown."""
    attribution = storages.attribution
    accumulated = {
        id(storage)
        for position, node in storages.nodes.items()
        if node.name == _ACCUMULATE
        for _, storage in storages.named[position].inputs
    }
    for storage in storages.found:
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


#: At most so many bytes more than were asked for does PyTorch's allocator give, rather than cut a piece in two.
_SLACK = 20 << 20

#: Operators that allocate memory for a tensor that they are given.
_GIVES_MEMORY = ("aten::resize_", "aten::resize_as_", "aten::set_")


@dataclass(slots=True, eq=False)
class Storage:
    """A block with all that is known of its tensors. born: when it was first named (ns)."""

    draft: Draft
    born: int
    arguments: set[str] = field(default_factory=set)
    tensors: set[int] = field(default_factory=set)
    views: set[int] = field(default_factory=set)

    def see(self, tensor: Tensor) -> None:
        """Note a tensor that lies in it."""
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
    """What an operator names: storages with the tensors by which it does."""

    inputs: list[tuple[Tensor, Storage]] = field(default_factory=list)
    outputs: list[tuple[Tensor, Storage]] = field(default_factory=list)


class Storages:
    """Walks the joined operators in time and settles which block each storage is."""

    def __init__(self, attribution: Attribution, nodes: Nodes, memory: DeviceMemory | None) -> None:
        self.attribution = attribution
        self.nodes = nodes
        self.memory = memory
        self.found: list[Storage] = []
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
            self._share_out(position, kernels)

    def _allocations_by_operator(self) -> dict[int, list[Allocation]]:
        """Allocations inside each operator, in time."""
        found: dict[int, list[Allocation]] = {}
        for allocation in self.memory.allocations if self.memory is not None else ():
            for op in self.attribution.operators(allocation.op):
                found.setdefault(op, []).append(allocation)
        return found

    def _moments(self) -> list[tuple[int, bool]]:
        """Begins and ends of the joined operators in time.

        At one instant: ends, inner before outer, then begins, outer before inner, then ends of what has no length.
        """
        ops, found = self.attribution.ops, []
        for position, node in self.nodes.items():
            op = ops[position]
            found.append(((op.start, 1, node.number), position, False))
            found.append(((op.end, 2 if op.end == op.start else 0, -node.number), position, True))
        found.sort()
        return [(position, is_end) for _, position, is_end in found]

    def _start(self, position: int) -> None:
        op, node, named = self.attribution.ops[position], self.nodes[position], self.named[position]
        for tensor in node.inputs:
            storage = self._current.get(tensor.storage)
            if storage is None or not self._is_there(storage, op.start):
                claim = self._claim_around(position, tensor)
                if claim is None and tensor.changed and node.name in _GIVES_MEMORY:
                    continue
                storage = self._new(tensor, op.start, claim, old=not self._is_new_inside(position, tensor, None))
            elif self._is_new_inside(position, tensor, storage):
                storage = self._new(tensor, op.start, None, old=False)
            named.inputs.append((tensor, storage))

    def _end(self, position: int) -> None:
        op, node, named = self.attribution.ops[position], self.nodes[position], self.named[position]
        given = {(id(storage), tensor.tensor) for tensor, storage in named.inputs}
        storages = {storage for storage, _ in given}
        for tensor in node.outputs:
            storage = self._current.get(tensor.storage)
            if storage is None or not self._is_there(storage, op.end):
                storage = self._new(tensor, op.end, self._claim(position, tensor), old=self.memory is not None)
            elif id(storage) not in storages and storage.born < op.start:
                claim = self._claim(position, tensor)
                if claim is not None or self.memory is None:
                    storage = self._new(tensor, op.end, claim, old=False)
            elif id(storage) in storages and (id(storage), tensor.tensor) not in given:
                storage.views.add(tensor.tensor)
            named.outputs.append((tensor, storage))
        for tensor, storage in (*named.inputs, *named.outputs):
            storage.see(tensor)

    def _is_new_inside(self, position: int, tensor: Tensor, storage: Storage | None) -> bool:
        """Without memory events: whether a tensor that appears first inside another operator must be new memory.

        It must, if it is changed there, or is larger than all that was seen in the storage.
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
        """For what an operator gave back: an allocation of its own that outlives it."""
        return self._best(self._in_op.get(position, []), tensor, self.attribution.ops[position].end)

    def _claim_around(self, position: int, tensor: Tensor) -> Allocation | None:
        """For what an operator was given and nobody had named: what an operator around it allocated just before."""
        start, own = self.attribution.ops[position].start, set(self._in_op.get(position, ()))
        for around in self.attribution.operators(self.attribution.parent[position]):
            latest_first = [a for a in reversed(self._in_op.get(around, [])) if a not in own]
            if (claim := self._best(latest_first, tensor, start)) is not None:
                return claim
        return None

    def _best(self, allocations: list[Allocation], tensor: Tensor, moment: int) -> Allocation | None:
        """Of the allocations that are held at a moment and are nobody's, the first of those that fit a tensor best."""
        fitting = [
            allocation
            for allocation in allocations
            if allocation not in self.claimed
            and allocation.is_held(moment)
            and tensor.bytes <= allocation.bytes <= tensor.bytes + _SLACK
        ]
        return min(fitting, key=lambda allocation: allocation.bytes, default=None)

    def _new(self, tensor: Tensor, at: int, allocation: Allocation | None, old: bool) -> Storage:
        """A new block in a storage; old: whether, without an allocation, it was there before the iteration."""
        name = self._names.next(tensor.storage)
        draft = Draft(name, 0, persistent=old and allocation is None, allocation=allocation)
        storage = Storage(draft, at if allocation is None else allocation.at)
        storage.see(tensor)
        if allocation is not None:
            self.claimed[allocation] = storage
        self.found.append(storage)
        self._current[tensor.storage] = storage
        return storage

    def _share_out(self, position: int, kernels: list[int]) -> None:
        """The kernels of an operator read what it was given and write what it changed or made."""
        named = self.named[position]
        given = {id(storage) for _, storage in named.inputs}
        read = [storage for tensor, storage in named.inputs if not tensor.overwritten]
        changed = [storage for tensor, storage in named.inputs if tensor.changed]
        made = [storage for _, storage in named.outputs if id(storage) not in given]
        for kernel in kernels:
            for storage in self._held(read, kernel):
                storage.draft.readers.add(kernel)
            for storage in self._held([*changed, *made], kernel):
                storage.draft.writers.add(kernel)

    def _launched_by(self) -> dict[int, list[int]]:
        """Kernels that an operator launched itself, or through parts of it that name no tensors."""
        found: dict[int, list[int]] = {}
        for op, kernels in self.attribution.launched_by.items():
            for around in self.attribution.chain(op):
                if around in self.nodes and (self.nodes[around].inputs or self.nodes[around].outputs):
                    found.setdefault(around, []).extend(kernels)
                    break
        return found

    def _held(self, storages: Iterable[Storage], kernel: int) -> list[Storage]:
        at = self.attribution.launched[kernel].at
        return [s for s in storages if s.draft.allocation is None or s.draft.allocation.is_held(at)]
