"""From the tensors of a TrioSim recording to pieces of memory, with their readers and writers.

How tensors become blocks:
- tensors with one storage id share a block, but storage ids come back. A tensor that an operator newly writes into a
  storage it does not read, and whose earlier tensors nobody names again, is a new block in reused memory; so is a new
  tensor that does not fit into the block its storage held, if nobody names that one again;
- an output with the id of an input is written in place. An output with another id in the storage of an input is a view:
  its kernel reads the block and does not write it. An in-place operator with no outputs listed, such as
  ``_foreach_add_``, writes its first operand;
- an undefined tensor (no bytes, storage 0) is no memory and is left out.

Some blocks are read although no listed operator writes them:
- what was there before the iteration is persistent: a weight, bias or target by its type; and what is first read in the
  forward or optimizer stage and never listed as an output (the batch, optimizer state);
- the rest (pooling indices, dropout masks, gradients made by operators that the recording leaves out) was made in the
  iteration. The recording numbers tensors in the order they appear, so such a block is *placed*: taken as written by
  the operator whose numbers surround its own. Where its number lies between two operators', it is the one that its
  reader is named after (``MaxPool2DWithIndicesBackward0`` after ``max_pool2d``), else the earlier.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from simgpu.importers.kinds import StorageNames
from simgpu.trace.model import Phase


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as tensor.csv lists it; `types` are all the roles it is listed in."""

    number: int
    storage: int
    bytes: int
    shape: tuple[int, ...]
    types: frozenset[str]

    @property
    def is_undefined(self) -> bool:
        return self.storage == 0 and self.bytes == 0


@dataclass(frozen=True, slots=True)
class Operator:
    """A row of trace.csv; inputs and outputs are tensor numbers."""

    id: str
    name: str
    phase: Phase
    duration_ns: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Memory:
    """A block while it is found out: its tensors, and the positions of the operators that read and write it.

    placed: whether its first writer was inferred from its number.
    """

    id: str
    tensors: list[Tensor] = field(default_factory=list)
    readers: list[int] = field(default_factory=list)
    writers: list[int] = field(default_factory=list)
    persistent: bool = False
    placed: bool = False

    @property
    def bytes(self) -> int:
        return max(tensor.bytes for tensor in self.tensors)

    @property
    def is_unwritten_when_read(self) -> bool:
        return bool(self.readers) and (not self.writers or self.readers[0] <= self.writers[0])

    def has_type(self, *starts: str) -> bool:
        """Whether one of its tensors is listed in a role that begins like this (``bias=None`` is a bias)."""
        return any(role.startswith(starts) for tensor in self.tensors for role in tensor.types)


@dataclass(frozen=True, slots=True)
class Resolved:
    """All blocks in the order in which operators first touch them, and what each operator reads and writes."""

    memories: list[Memory]
    reads: list[list[Memory]]
    writes: list[list[Memory]]


def resolve(operators: Sequence[Operator], tensors: Mapping[int, Tensor]) -> Resolved:
    """Settle which tensors are which block, and who reads and writes them."""
    finder = _Finder(operators, tensors)
    for position in range(len(operators)):
        finder.follow(position)
    unwritten = [memory for memory in finder.memories if memory.is_unwritten_when_read]
    for memory in unwritten:
        memory.persistent = _was_there_before(memory, operators)
    hidden = [memory for memory in unwritten if not memory.persistent]
    for position, memory in _place(hidden, operators, tensors):
        memory.writers.insert(0, position)
        memory.placed = True
        finder.writes[position].append(memory)
    return Resolved(finder.memories, finder.reads, finder.writes)


class _Finder:
    """Walks the operators and keeps which block each storage holds."""

    def __init__(self, operators: Sequence[Operator], tensors: Mapping[int, Tensor]) -> None:
        self.operators = operators
        self.tensors = tensors
        self.memories: list[Memory] = []
        self.reads: list[list[Memory]] = []
        self.writes: list[list[Memory]] = []
        self._current: dict[int, Memory] = {}
        self._of: dict[int, Memory] = {}
        self._names = StorageNames()
        self._last_named = {
            number: position
            for position, operator in enumerate(operators)
            for number in (*operator.inputs, *operator.outputs)
        }

    def follow(self, position: int) -> None:
        operator = self.operators[position]
        inputs = [self.tensors[number] for number in operator.inputs]
        read = [self._read(tensor, position) for tensor in inputs if not tensor.is_undefined]
        written = [self._of[number] for number in _written_in_place(operator, self.tensors) if number in self._of]
        for number in operator.outputs:
            tensor = self.tensors[number]
            if not tensor.is_undefined and number not in operator.inputs:
                memory = self._result(tensor, position, read)
                if memory is not None:
                    written.append(memory)
        self.reads.append(list(dict.fromkeys(read)))
        self.writes.append(list(dict.fromkeys(written)))
        for memory in self.reads[-1]:
            memory.readers.append(position)
        for memory in self.writes[-1]:
            memory.writers.append(position)

    def _read(self, tensor: Tensor, position: int) -> Memory:
        if tensor.number in self._of:
            return self._of[tensor.number]
        held = self._current.get(tensor.storage)
        fits = held is not None and (tensor.bytes <= held.bytes or self._named_from(held, position))
        return self._join(held if fits else None, tensor)

    def _result(self, tensor: Tensor, position: int, read: list[Memory]) -> Memory | None:
        """The block an output is written to; None when it is a view of an input."""
        if tensor.number in self._of:
            return self._of[tensor.number]
        held = self._current.get(tensor.storage)
        if held is not None and held in read:
            self._join(held, tensor)
            return None
        return self._join(held if held is not None and self._named_from(held, position + 1) else None, tensor)

    def _named_from(self, memory: Memory, position: int) -> bool:
        return any(self._last_named[tensor.number] >= position for tensor in memory.tensors)

    def _join(self, memory: Memory | None, tensor: Tensor) -> Memory:
        if memory is None:
            memory = Memory(self._names.next(tensor.storage))
            self.memories.append(memory)
            self._current[tensor.storage] = memory
        memory.tensors.append(tensor)
        self._of[tensor.number] = memory
        return memory


def _written_in_place(operator: Operator, tensors: Mapping[int, Tensor]) -> tuple[int, ...]:
    in_place = tuple(number for number in operator.outputs if number in operator.inputs)
    if operator.outputs or not operator.name.endswith("_"):
        return in_place
    if "_foreach_" not in operator.name:
        return operator.inputs[:1]
    return operator.inputs[: len(operator.inputs) // _lists(operator, tensors)]


def _lists(operator: Operator, tensors: Mapping[int, Tensor]) -> int:
    """How many lists of equally many tensors a ``_foreach_`` operator was given, one after another."""
    known = {"addcmul": 3, "addcdiv": 3, "lerp": 2}
    action = operator.name.rpartition("_foreach_")[2].strip("_")
    count, half = len(operator.inputs), len(operator.inputs) // 2
    if action in known and count % known[action] == 0:
        return known[action]
    shapes = [tensors[number].shape for number in operator.inputs]
    return 2 if count > 1 and count % 2 == 0 and shapes[:half] == shapes[half:] else 1


def _was_there_before(memory: Memory, operators: Sequence[Operator]) -> bool:
    if memory.has_type("weight", "bias", "target"):
        return True
    return operators[memory.readers[0]].phase is not Phase.BACKWARD and not memory.has_type("output")


def _place(
    hidden: list[Memory], operators: Sequence[Operator], tensors: Mapping[int, Tensor]
) -> Iterator[tuple[int, Memory]]:
    """The first writer of each hidden block; one whose number precedes every operator's is persistent instead."""
    numbered = _numbers_given(operators, {tensor.number for memory in hidden for tensor in memory.tensors}, tensors)
    for memory in hidden:
        number, reader = memory.tensors[0].number, memory.readers[0]
        before = [position for position, low, _ in numbered if low < number and position < reader]
        if not before:
            memory.persistent = True
            continue
        low = before[-1]
        inside = any(position == low and number < high for position, _, high in numbered)
        after = [position for position, first, _ in numbered if first > number]
        last = low if inside else min([*after[:1], reader - 1])
        near = [p for p in range(low, last + 1) if _is_named_after(operators[reader].name, operators[p].name)]
        yield near[0] if near else low, memory


def _numbers_given(
    operators: Sequence[Operator], hidden: set[int], tensors: Mapping[int, Tensor]
) -> list[tuple[int, int, int]]:
    """Positions of operators during which tensors were numbered, with the lowest and the highest number."""
    highest = 0
    spans = []
    for position, operator in enumerate(operators):
        new = [
            number
            for number in (*operator.inputs, *operator.outputs)
            if number > highest and number not in hidden and not tensors[number].is_undefined
        ]
        if new:
            spans.append((position, min(new), max(new)))
            highest = max(new)
    return spans


def _is_named_after(backward: str, forward: str) -> bool:
    """Whether an operator's name contains another's: MaxPool2DWithIndicesBackward0 and aten::max_pool2d."""
    plain = [re.sub(r"[^a-z0-9]", "", name.rpartition("::")[2].lower()) for name in (backward, forward)]
    return plain[1] in plain[0]
