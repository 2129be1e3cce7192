"""Reading a TrioSim recording: a folder with trace.csv (operators) and tensor.csv (their tensors).

Durations are those without overlap. Lifetimes are not recorded, so `release` stays unknown. Which tensors are which
block, and who wrote what, is settled in `simgpu.importers.storages`; this module reads the two files and turns
the outcome into a trace. What a block holds is told by the type of its tensors (weight, bias, target), else by the
stage that first touched it: forward results are feature maps; backward results are gradients, and a weight's gradient
if the optimizer reads them; persistent blocks are the input, or optimizer state where only the optimizer reads them;
what the optimizer makes for itself is `other`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

from simgpu.errors import InputError, Problem
from simgpu.importers.kinds import kind_of_new
from simgpu.importers.provenance import Told
from simgpu.importers.quantities import nanoseconds, shown, whole
from simgpu.importers.storages import Memory, Operator, Resolved, Tensor, resolve
from simgpu.io.input_files import first_bytes
from simgpu.io.text_files import read_text
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


class _CellError(ValueError):
    """A cell that cannot be read: what is wrong with it."""


def recognises(path: Path) -> bool:
    """Whether a folder has a trace.csv or a tensor.csv with TrioSim's first columns."""
    return _header(path / "trace.csv").startswith(b"OperatorID,") or _header(path / "tensor.csv").startswith(
        b"Index,TensorID,"
    )


def _header(path: Path) -> bytes:
    return first_bytes(path, 4096) if path.is_file() else b""


def load(path: Path, told: Told) -> Trace:
    """The recording as a trace. Raises `InputError` with every row that cannot be followed."""
    problems: list[Problem] = []
    tensors = _read_tensors(path / "tensor.csv", problems)
    operators = _read_operators(path / "trace.csv", tensors, problems)
    if problems:
        raise InputError(problems)
    resolved = resolve(operators, tensors)
    blocks = tuple(_block(memory, operators) for memory in resolved.memories)
    placed = sum(memory.placed for memory in resolved.memories)
    notes = (
        f"Blocks that are read although no listed operator writes them: {placed}; each is taken as written by the "
        "operator during which its tensor was numbered. Operands that the recording leaves out are not read here "
        "either. Lifetimes are not recorded."
    )
    info = told.info(path, _TOOL, path.resolve().name, told.samples(path, _batch(blocks)), notes)
    return Trace(info, _kernels(operators, resolved), blocks)


def _rows(path: Path, columns: tuple[str, ...], problems: list[Problem]) -> Iterator[tuple[str, dict[str, str]]]:
    """Rows of a CSV file with their places; missing columns and cut-off rows become problems."""
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
                what = "not one field for each column: the file seems cut off"
                problems.append(Problem(str(path), place, what, "record it again"))
            else:
                yield place, row
    except csv.Error as error:
        problems.append(Problem(str(path), f"row {reader.line_num}", f"not CSV ({error})", "record it again"))


def _whole(text: str) -> int:
    try:
        return whole(text.strip())
    except ValueError as error:
        raise _CellError(str(error)) from None


def _numbers(text: str) -> tuple[int, ...]:
    if _NUMBERS.fullmatch(text.strip()) is None:
        raise _CellError(f"{shown(text)} is not a list of numbers such as [4; 6]")
    return tuple(_whole(number) for number in re.findall(r"\d+", text))


def _nanoseconds(text: str) -> int:
    try:
        value = nanoseconds(text.strip(), "microseconds")
    except ValueError as error:
        raise _CellError(str(error)) from None
    if value < 0 or value != value.to_integral_value():
        raise _CellError(f"{shown(text)} microseconds are not whole nanoseconds >= 0")
    return int(value)


def _read_tensors(path: Path, problems: list[Problem]) -> dict[int, Tensor]:
    tensors: dict[int, Tensor] = {}
    for place, row in _rows(path, _TENSOR_COLUMNS, problems):
        try:
            shape = _numbers(row["TensorShape"])
            size = _whole(row["TensorNumElement"]) * _whole(row["TensorEachByte"])
            number, storage = _whole(row["TensorID"]), _whole(row["TensorStorgeid"])
        except _CellError as error:
            problems.append(Problem(str(path), place, str(error), "record it again"))
            continue
        types = tensors[number].types if number in tensors else frozenset[str]()
        tensor = Tensor(number, storage, size, shape, types | {row["TensorType"].strip()})
        if number in tensors and tensors[number].storage != storage:
            what = f"tensor {number} is in storage {storage}, above in {tensors[number].storage}"
            problems.append(Problem(str(path), place, what, "record it again"))
        tensors[number] = tensor
    return tensors


def _read_operators(path: Path, tensors: dict[int, Tensor], problems: list[Problem]) -> list[Operator]:
    operators = []
    devices = set()
    found = len(problems)
    for place, row in _rows(path, _TRACE_COLUMNS, problems):
        devices.add(row["gpuid"].strip())
        try:
            stage = row["stage"].strip()
            if stage not in list(Phase):
                raise _CellError(f"{stage!r} is not a stage ({', '.join(Phase)})")
            inputs, outputs = _numbers(row["Operator_input"]), _numbers(row["Operator_output"])
            if tensors and (unknown := [number for number in (*inputs, *outputs) if number not in tensors]):
                raise _CellError(f"tensor {unknown[0]} has no row in tensor.csv")
            duration = _nanoseconds(row["Operator_cudatimenooverlap"])
        except _CellError as error:
            problems.append(Problem(str(path), place, str(error), "record it again"))
            continue
        name = row["OperatorName"].strip()
        operators.append(Operator(row["OperatorID"].strip(), name, Phase(stage), duration, inputs, outputs))
    if not operators and len(problems) == found:
        problems.append(Problem(str(path), "", "holds no operators", "record an iteration"))
    if len(devices) > 1:
        what = f"holds several GPUs ({', '.join(sorted(devices))})"
        problems.append(Problem(str(path), "column gpuid", what, "keep the rows of one GPU"))
    return operators


def _kernels(operators: list[Operator], resolved: Resolved) -> tuple[Kernel, ...]:
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


def _block(memory: Memory, operators: list[Operator]) -> Block:
    return Block(
        memory.id,
        memory.bytes,
        _kind(memory, operators),
        persistent=memory.persistent,
        shape=memory.tensors[0].shape,
    )


def _kind(memory: Memory, operators: list[Operator]) -> BlockKind:
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
    """The first side of the input's shape."""
    shapes = [block.shape for block in blocks if block.kind is BlockKind.INPUT and block.shape]
    return shapes[0][0] if shapes and shapes[0] is not None else None
