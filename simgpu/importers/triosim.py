"""Imports TrioSim recordings: a folder with trace.csv (operators) and tensor.csv (their tensors).

Durations are those measured without overlap. Lifetimes are not recorded, so `release` stays unknown. The kind of a
block follows from the type of its tensors (weight, bias, target), else from the stage that first used it. Forward
results are activations (feature maps). Backward results are gradients, or weight gradients if the optimizer reads them.
Persistent blocks are the input, or optimizer state if only the optimizer reads them. Blocks that the optimizer creates
are `other`.

How tensors become blocks:
- Tensors with the same storage id share a block, but storage ids are reused. A tensor is a new block in reused memory
  if an operator writes it into a storage that it does not read, and the storage's earlier tensors are not used again;
  or if it does not fit into the current block of its storage, and that block is not used again.
- An output with the id of an input is written in place. An output with another id in the storage of an input is a view:
  its kernel reads the block and does not write it. An in-place operator without listed outputs, such as
  ``_foreach_add_``, writes its first operand.
- An undefined tensor (no bytes, storage 0) is dropped.

Some blocks are read although no listed operator writes them:
- Blocks from before the iteration are persistent: tensors of type weight, bias or target; and tensors that are first
  read in the forward or optimizer stage and never listed as an output (the batch, optimizer state).
- The rest (pooling indices, dropout masks, gradients of operators that the recording omits) was created in the
  iteration. The recording numbers tensors in order of appearance, so the importer *places* such a block: its writer is
  the operator whose tensor numbers enclose the block's number. If the number falls between two operators, the writer is
  the one that the reader is named after (``MaxPool2DWithIndicesBackward0`` after ``max_pool2d``), else the earlier one.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from simgpu.errors import InputError, Problem
from simgpu.importers.drafts import StorageNames, kind_of_new
from simgpu.importers.options import ImportOptions
from simgpu.importers.quantities import integer, nanoseconds, shown
from simgpu.io.input_files import first_bytes, read_text
from simgpu.trace.model import Block, BlockKind, Kernel, Phase, Trace
from simgpu.trace.operators import purity

_TOOL = "TrioSim recording"
_TRACE_COLUMNS = (
    "OperatorID",
    "OperatorName",
    "Operator_input",
    "Operator_output",
    "Operator_cudatimenooverlap",
    "gpuid",
    "stage",
)
_TENSOR_COLUMNS = (
    "TensorID",
    "TensorShape",
    "TensorNumElement",
    "TensorEachByte",
    "TensorType",
    "TensorStorgeid",
)
_NUMBERS = re.compile(r"\[\s*(?:\d+(?:\s*[;,]\s*\d+)*)?\s*\]")


def recognises(path: Path) -> bool:
    """Whether a folder has a trace.csv or a tensor.csv with TrioSim's first columns."""
    return _header(path / "trace.csv").startswith(b"OperatorID,") or _header(path / "tensor.csv").startswith(
        b"Index,TensorID,"
    )


def _header(path: Path) -> bytes:
    return first_bytes(path, 4096) if path.is_file() else b""


def load(path: Path, options: ImportOptions) -> Trace:
    """Returns the recording as a trace. Raises `InputError` with every invalid row."""
    problems: list[Problem] = []
    tensors = _read_tensors(path / "tensor.csv", problems)
    operators = _read_operators(path / "trace.csv", tensors, problems)
    if problems:
        raise InputError(problems)
    resolved = resolve(operators, tensors)
    blocks = tuple(_block(memory, operators) for memory in resolved.memories)
    placed = sum(memory.placed for memory in resolved.memories)
    notes = (
        f"Blocks that are read although no listed operator writes them: {placed}; each is assigned to the operator "
        "during which its tensor was numbered. Operands that the recording omits are missing here too. Lifetimes are "
        "not recorded."
    )
    info = options.info(path, _TOOL, path.resolve().name, options.samples(path, _batch(blocks)), notes)
    return Trace(info, _kernels(operators, resolved), blocks)


def _rows(path: Path, columns: tuple[str, ...], problems: list[Problem]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields the rows of a CSV file with their places; adds missing columns and truncated rows to `problems`."""
    try:
        text = read_text(path, "a CSV text file", if_empty="record it again")
    except InputError as error:
        problems += error.problems
        return
    reader = csv.DictReader(io.StringIO(text, newline=""))
    names = [name.strip() for name in reader.fieldnames or ()]
    reader.fieldnames = names
    if missing := [name for name in columns if name not in names]:
        what = f"columns missing: {', '.join(missing)}"
        problems.append(Problem(str(path), "row 1", what, f"TrioSim writes: {', '.join(columns)}"))
        return
    try:
        for row in reader:
            place = f"row {reader.line_num}"
            if None in row or None in row.values():
                what = "does not have one field per column: the file seems cut off"
                problems.append(Problem(str(path), place, what, "record it again"))
            else:
                yield place, row
    except csv.Error as error:
        problems.append(Problem(str(path), f"row {reader.line_num}", f"not CSV ({error})", "record it again"))


def _numbers(text: str) -> tuple[int, ...]:
    if _NUMBERS.fullmatch(text.strip()) is None:
        raise ValueError(f"{shown(text)} is not a list of numbers such as [4; 6]")
    return tuple(integer(number) for number in re.findall(r"\d+", text))


def _nanoseconds(text: str) -> int:
    value = nanoseconds(text.strip(), "microseconds")
    if value < 0 or value != value.to_integral_value():
        raise ValueError(f"{shown(text)} microseconds are not whole nanoseconds >= 0")
    return int(value)


def _read_tensors(path: Path, problems: list[Problem]) -> dict[int, TrioSimTensor]:
    tensors: dict[int, TrioSimTensor] = {}
    for place, row in _rows(path, _TENSOR_COLUMNS, problems):
        try:
            shape = _numbers(row["TensorShape"])
            size = integer(row["TensorNumElement"].strip()) * integer(row["TensorEachByte"].strip())
            number, storage = integer(row["TensorID"].strip()), integer(row["TensorStorgeid"].strip())
        except ValueError as error:
            problems.append(Problem(str(path), place, str(error), "record it again"))
            continue
        types = tensors[number].types if number in tensors else frozenset[str]()
        tensor = TrioSimTensor(number, storage, size, shape, types | {row["TensorType"].strip()})
        if number in tensors and tensors[number].storage != storage:
            what = f"tensor {number} is in storage {storage}, but in {tensors[number].storage} in a row above"
            problems.append(Problem(str(path), place, what, "record it again"))
        tensors[number] = tensor
    return tensors


def _read_operators(path: Path, tensors: dict[int, TrioSimTensor], problems: list[Problem]) -> list[TrioSimOperator]:
    operators = []
    devices = set()
    earlier_problems = len(problems)
    for place, row in _rows(path, _TRACE_COLUMNS, problems):
        devices.add(row["gpuid"].strip())
        try:
            stage = row["stage"].strip()
            if stage not in list(Phase):
                raise ValueError(f"{stage!r} is not a stage ({', '.join(Phase)})")
            inputs, outputs = _numbers(row["Operator_input"]), _numbers(row["Operator_output"])
            if tensors and (unknown := [number for number in (*inputs, *outputs) if number not in tensors]):
                raise ValueError(f"tensor {unknown[0]} has no row in tensor.csv")
            duration = _nanoseconds(row["Operator_cudatimenooverlap"])
        except ValueError as error:
            problems.append(Problem(str(path), place, str(error), "record it again"))
            continue
        name = row["OperatorName"].strip()
        operators.append(TrioSimOperator(row["OperatorID"].strip(), name, Phase(stage), duration, inputs, outputs))
    if not operators and len(problems) == earlier_problems:
        problems.append(Problem(str(path), "", "contains no operators", "record an iteration"))
    if len(devices) > 1:
        what = f"contains several GPUs ({', '.join(sorted(devices))})"
        problems.append(Problem(str(path), "column gpuid", what, "keep the rows of one GPU"))
    return operators


def _kernels(operators: list[TrioSimOperator], resolved: Resolved) -> tuple[Kernel, ...]:
    return tuple(
        Kernel(
            operator.id,
            operator.name,
            operator.phase,
            operator.duration_ns,
            tuple(memory.id for memory in reads),
            tuple(memory.id for memory in writes),
            pure=False if operator.phase is Phase.OPTIMIZER else purity(operator.name),
        )
        for operator, reads, writes in zip(operators, resolved.reads, resolved.writes, strict=True)
    )


def _block(memory: TrioSimBlock, operators: list[TrioSimOperator]) -> Block:
    return Block(
        memory.id,
        memory.bytes,
        _kind(memory, operators),
        persistent=memory.persistent,
        shape=memory.tensors[0].shape,
    )


def _kind(memory: TrioSimBlock, operators: list[TrioSimOperator]) -> BlockKind:
    stages = {operators[position].phase for position in memory.readers}
    if memory.persistent:
        if memory.has_type("weight", "bias"):
            return BlockKind.WEIGHT
        if memory.has_type("target"):
            return BlockKind.LABEL
        if stages == {Phase.OPTIMIZER}:
            return BlockKind.OPTIMIZER_STATE
        return BlockKind.INPUT if memory.has_type("input") else BlockKind.OTHER
    return kind_of_new(operators[memory.writers[0]].phase, stages)


def _batch(blocks: tuple[Block, ...]) -> int | None:
    """The first dimension of the input; None if unknown."""
    shapes = [block.shape for block in blocks if block.kind is BlockKind.INPUT and block.shape]
    return shapes[0][0] if shapes and shapes[0] is not None else None


@dataclass(frozen=True, slots=True)
class TrioSimTensor:
    """A tensor in tensor.csv. types: all types under which it is listed."""

    number: int
    storage: int
    bytes: int
    shape: tuple[int, ...]
    types: frozenset[str]

    @property
    def is_undefined(self) -> bool:
        return self.storage == 0 and self.bytes == 0


@dataclass(frozen=True, slots=True)
class TrioSimOperator:
    """A row of trace.csv; inputs and outputs are tensor numbers."""

    id: str
    name: str
    phase: Phase
    duration_ns: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(slots=True, eq=False)
class TrioSimBlock:
    """A block of the recording: its tensors, and the positions of the operators that read and write it.

    placed: whether its first writer was inferred from its tensor number.
    """

    id: str
    tensors: list[TrioSimTensor] = field(default_factory=list)
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
        """Whether a type of one of its tensors starts with one of `starts` (``bias=None`` is a bias)."""
        return any(role.startswith(starts) for tensor in self.tensors for role in tensor.types)


@dataclass(frozen=True, slots=True)
class Resolved:
    """All blocks in order of first use, and the blocks that each operator reads and writes."""

    memories: list[TrioSimBlock]
    reads: list[list[TrioSimBlock]]
    writes: list[list[TrioSimBlock]]


def resolve(operators: Sequence[TrioSimOperator], tensors: Mapping[int, TrioSimTensor]) -> Resolved:
    """Assigns tensors to blocks, and determines the readers and writers of each block."""
    finder = _StorageWalk(operators, tensors)
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


class _StorageWalk:
    """Follows the operators in order and tracks the current block of each storage."""

    def __init__(self, operators: Sequence[TrioSimOperator], tensors: Mapping[int, TrioSimTensor]) -> None:
        self.operators = operators
        self.tensors = tensors
        self.memories: list[TrioSimBlock] = []
        self.reads: list[list[TrioSimBlock]] = []
        self.writes: list[list[TrioSimBlock]] = []
        self._current: dict[int, TrioSimBlock] = {}
        self._of: dict[int, TrioSimBlock] = {}
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

    def _read(self, tensor: TrioSimTensor, position: int) -> TrioSimBlock:
        if tensor.number in self._of:
            return self._of[tensor.number]
        current = self._current.get(tensor.storage)
        fits = current is not None and (tensor.bytes <= current.bytes or self._named_from(current, position))
        return self._join(current if fits else None, tensor)

    def _result(self, tensor: TrioSimTensor, position: int, read: list[TrioSimBlock]) -> TrioSimBlock | None:
        """The block that an output is written to; None if the output is a view of an input."""
        if tensor.number in self._of:
            return self._of[tensor.number]
        current = self._current.get(tensor.storage)
        if current is not None and current in read:
            self._join(current, tensor)
            return None
        is_used_later = current is not None and self._named_from(current, position + 1)
        return self._join(current if is_used_later else None, tensor)

    def _named_from(self, memory: TrioSimBlock, position: int) -> bool:
        return any(self._last_named[tensor.number] >= position for tensor in memory.tensors)

    def _join(self, memory: TrioSimBlock | None, tensor: TrioSimTensor) -> TrioSimBlock:
        if memory is None:
            memory = TrioSimBlock(self._names.next(tensor.storage))
            self.memories.append(memory)
            self._current[tensor.storage] = memory
        memory.tensors.append(tensor)
        self._of[tensor.number] = memory
        return memory


def _written_in_place(operator: TrioSimOperator, tensors: Mapping[int, TrioSimTensor]) -> tuple[int, ...]:
    in_place = tuple(number for number in operator.outputs if number in operator.inputs)
    if operator.outputs or not operator.name.endswith("_"):
        return in_place
    if "_foreach_" not in operator.name:
        return operator.inputs[:1]
    return operator.inputs[: len(operator.inputs) // _lists(operator, tensors)]


def _lists(operator: TrioSimOperator, tensors: Mapping[int, TrioSimTensor]) -> int:
    """The number of equally long tensor lists that a ``_foreach_`` operator has as inputs."""
    known = {"addcmul": 3, "addcdiv": 3, "lerp": 2}
    action = operator.name.rpartition("_foreach_")[2].strip("_")
    count, half = len(operator.inputs), len(operator.inputs) // 2
    if action in known and count % known[action] == 0:
        return known[action]
    shapes = [tensors[number].shape for number in operator.inputs]
    return 2 if count > 1 and count % 2 == 0 and shapes[:half] == shapes[half:] else 1


def _was_there_before(memory: TrioSimBlock, operators: Sequence[TrioSimOperator]) -> bool:
    if memory.has_type("weight", "bias", "target"):
        return True
    return operators[memory.readers[0]].phase is not Phase.BACKWARD and not memory.has_type("output")


def _place(
    hidden: list[TrioSimBlock], operators: Sequence[TrioSimOperator], tensors: Mapping[int, TrioSimTensor]
) -> Iterator[tuple[int, TrioSimBlock]]:
    """Yields the first writer of each hidden block; marks blocks numbered before every operator as persistent."""
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
    operators: Sequence[TrioSimOperator], hidden: set[int], tensors: Mapping[int, TrioSimTensor]
) -> list[tuple[int, int, int]]:
    """Positions of the operators with new tensors, with the lowest and highest new tensor number."""
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
