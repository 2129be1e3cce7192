"""Imports files of the G10 simulator: a folder with kernels.config, tensors.config and cudnnB.txt for batch size B.

kernels.config has the kernels, their order and their tensors, from the graph that G10 builds for a network. cudnnB.txt
has the measured duration of each kernel, run alone, exact to the nanosecond. The execution times in kernels.config are
the same measurements in cycles of the clock set in G10, rounded down; the notes compare the two. Files whose names end
in PF contain kernel times under page faults and are not read.

How tensors become blocks:
- Each tensor is a block: G10 has no views, and in-place kernels list a tensor as both input and output.
- "global" tensors are weights and persistent. Other tensors that no kernel writes existed before: the batch, if an
  embedding or a convolution reads them, else constants such as divisors (`other`).
- A result of a forward kernel is an activation (feature map). A result of a later kernel is a gradient, or a weight
  gradient if a kernel that applies gradients reads it.
- A tensor that one kernel writes and no kernel reads is that kernel's workspace if its size is the kernel's size in
  cudnnBWorkspace.txt, rounded up to full pages. Without that file there are no workspaces.
- A tensor's Range is its place in G10's address space. Addresses are never reused, so the Range does not show
  lifetimes, which are not recorded.

Phases follow the kernels' names. Gradients are applied as soon as they exist, between the backward kernels.
A layer is one operator: its forward kernel, its backward kernels and the update of its weights have the same parent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from simgpu.errors import InputError, Problem
from simgpu.importers.options import ImportOptions
from simgpu.importers.quantities import integer, nanoseconds, shown
from simgpu.io.input_files import first_bytes, read_text
from simgpu.trace.model import Block, BlockKind, Kernel, Phase, Trace
from simgpu.trace.operators import purity
from simgpu.units import format_bytes

_TOOL = "G10 simulator files"
_TIMES = re.compile(r"cudnn(\d+)\.txt")
_PAGE = 4096

#: Forward kernels whose unwritten, non-global operand is the batch.
_READ_THE_BATCH = ("GatherV2_Forward", "Conv2d_Forward")
#: The kernel that copies the batch to the device, in networks that consist of layers.
_LOAD = "LoadData_A0"


def recognises(path: Path) -> bool:
    """Whether a folder has a kernels.config or a tensors.config that begins like G10's files."""
    return _begins(path / "kernels.config", b"Kernel ID:") or _begins(path / "tensors.config", b"tensor")


def _begins(path: Path, word: bytes) -> bool:
    return path.is_file() and first_bytes(path, len(word)) == word


def load(path: Path, options: ImportOptions) -> Trace:
    """Returns the folder as a trace. Raises `InputError` with every invalid line."""
    problems: list[Problem] = []
    tensors = read_tensors(path / "tensors.config", problems)
    kernels = read_kernels(path / "kernels.config", tensors, problems)
    times_file = _times_file(path, options.batch, problems)
    durations: list[int] = []
    workspaces: list[int] = []
    if times_file is not None:
        durations = _durations(times_file, problems)
        _require_one_each(times_file, durations, path, kernels, problems)
        workspace_file = times_file.with_name(f"{times_file.stem}Workspace.txt")
        if workspace_file.exists():
            workspaces = _workspaces(workspace_file, problems)
            _require_one_each(workspace_file, workspaces, path, kernels, problems)
    if problems or times_file is None:
        raise InputError(problems)
    scratch = _find_workspaces(times_file, workspaces, kernels, tensors, problems)
    if problems:
        raise InputError(problems)
    batch = int(times_file.stem.removeprefix("cudnn"))
    model = path.resolve().name
    notes = _notes(kernels, durations, bool(workspaces)) + _on_weights(tensors.values())
    if options.batch is None:
        notes += f" The batch size is from the file name {times_file.name}."
    info = options.info(path, _TOOL, model.removesuffix(f"-{batch}"), batch, notes)
    return Trace(info, _kernels(kernels, durations), _blocks(kernels, tensors, scratch))


def _times_file(path: Path, recorded_batch: int | None, problems: list[Problem]) -> Path | None:
    """The path of cudnnB.txt; if there are several, the one for the user's batch size."""
    result = {int(match[1]): file for file in sorted(path.iterdir()) if (match := _TIMES.fullmatch(file.name))}
    if not result:
        remedy = "add the kernel times, cudnnB.txt for batch B: kernels.config has cycles of a clock not recorded"
        problems.append(Problem(str(path), "", "has no cudnnB.txt", remedy))
        return None
    if len(result) == 1:
        return next(iter(result.values()))
    if recorded_batch in result:
        return result[recorded_batch]
    what = f"has kernel times of several batches: {', '.join(file.name for file in result.values())}"
    problems.append(Problem(str(path), "", what, "pass the batch size of kernels.config (--batch)"))
    return None


def _lines(path: Path, unit: str, problems: list[Problem]) -> Iterator[tuple[str, str]]:
    """Yields the values of lines ``<index> <value> <unit>`` with their places; indexes count from 0 without gaps."""
    try:
        text = read_text(path, if_empty="record it again")
    except InputError as error:
        problems += error.problems
        return
    if not text.endswith("\n"):
        problems.append(Problem(str(path), f"row {text.count(chr(10)) + 1}", "the file seems cut off", "copy it again"))
    for row, line in enumerate(text.splitlines()):
        place, parts = f"row {row + 1}", line.split()
        if len(parts) != 3 or parts[2] != unit:
            what = f"{line[:40]!r} is not a kernel's number, a value and {unit}"
            problems.append(Problem(str(path), place, what, f"G10 writes for example '{row:04} 5 {unit}'"))
            return
        if _count(parts[0]) != row:
            what = f"kernel {parts[0][:40]} instead of {row}"
            problems.append(Problem(str(path), place, what, "kernels must count from 0 without gaps: record it again"))
            return
        yield place, parts[1]


def _durations(path: Path, problems: list[Problem]) -> list[int]:
    result = []
    for place, text in _lines(path, "ms", problems):
        try:
            value = nanoseconds(text, "milliseconds")
        except ValueError:
            value = Decimal(-1)
        if value < 0 or value != value.to_integral_value():
            what = f"{shown(text)} ms is not a whole number of nanoseconds >= 0"
            problems.append(Problem(str(path), place, what, "record it again"))
            value = Decimal(0)
        result.append(int(value))
    return result


def _workspaces(path: Path, problems: list[Problem]) -> list[int]:
    result = []
    for place, text in _lines(path, "B", problems):
        if (size := _count(text)) < 0:
            what = f"{shown(text)} is not a whole number of bytes"
            problems.append(Problem(str(path), place, what, "record it again"))
        result.append(max(size, 0))
    return result


def _count(text: str) -> int:
    """Parses a whole number; -1 if the text is not one."""
    try:
        return integer(text)
    except ValueError:
        return -1


def _require_one_each(
    path: Path, values: Sequence[int], folder: Path, kernels: Sequence[G10Kernel], problems: list[Problem]
) -> None:
    """Report a problem if values and kernels differ in number; skipped if problems were reported already."""
    if not problems and len(values) != len(kernels):
        what = f"contains {len(values)} kernels, {folder.name}/kernels.config {len(kernels)}"
        problems.append(Problem(str(path), "", what, "use files of one model, batch and run"))


def _find_workspaces(
    times_file: Path,
    sizes: Sequence[int],
    kernels: Sequence[G10Kernel],
    tensors: Mapping[int, G10Tensor],
    problems: list[Problem],
) -> frozenset[int]:
    """Tensors that are workspaces: for each kernel with a workspace, an output that no other kernel accesses."""
    touched: dict[int, int] = {}
    for kernel in kernels:
        for number in {*kernel.inputs, *kernel.outputs}:
            touched[number] = touched.get(number, 0) + 1
    result = set()
    for kernel, size in zip(kernels, sizes, strict=False):
        pages = -(-size // _PAGE) * _PAGE
        own = [n for n in kernel.outputs if touched[n] == 1 and tensors[n].bytes == pages and n not in kernel.inputs]
        if size and own:
            result.add(own[-1])
        elif size:
            file = times_file.with_name(f"{times_file.stem}Workspace.txt")
            what = f"kernel {kernel.number} has a workspace of {size} B, but no output of {pages} B that only it uses"
            remedy = "use files of one model, batch and run"
            problems.append(Problem(str(file), f"row {kernel.number + 1}", what, remedy))
    return frozenset(result)


def _phase(name: str) -> Phase:
    if "Apply_Grad" in name:
        return Phase.OPTIMIZER
    return Phase.FORWARD if name.endswith("_Forward") or name == _LOAD else Phase.BACKWARD


def _pure(name: str, phase: Phase) -> bool | None:
    return False if phase is Phase.OPTIMIZER else purity(name.removesuffix("_Forward").lower())


def _kernels(kernels: Sequence[G10Kernel], durations: Sequence[int]) -> tuple[Kernel, ...]:
    return tuple(
        Kernel(
            f"{kernel.number:04}",
            kernel.name,
            (phase := _phase(kernel.name)),
            duration,
            tuple(f"tensor{number}" for number in kernel.inputs),
            tuple(f"tensor{number}" for number in kernel.outputs),
            layer=kernel.parent,
            pure=_pure(kernel.name, phase),
        )
        for kernel, duration in zip(kernels, durations, strict=True)
    )


def _blocks(
    kernels: Sequence[G10Kernel], tensors: Mapping[int, G10Tensor], scratch: frozenset[int]
) -> tuple[Block, ...]:
    readers: dict[int, list[G10Kernel]] = {number: [] for number in tensors}
    makers: dict[int, G10Kernel] = {}
    for kernel in kernels:
        for number in kernel.inputs:
            readers[number].append(kernel)
        for number in kernel.outputs:
            makers.setdefault(number, kernel)
    blocks = []
    for number, tensor in tensors.items():
        maker = makers.get(number)
        persistent = tensor.is_global or maker is None
        kind = BlockKind.WORKSPACE if number in scratch else _kind(tensor, maker, readers[number])
        user = maker or next(iter(readers[number]), None)
        layer = user.parent if user is not None else None
        blocks.append(Block(f"tensor{number}", tensor.bytes, kind, persistent=persistent, layer=layer))
    return tuple(blocks)


def _kind(tensor: G10Tensor, maker: G10Kernel | None, readers: Sequence[G10Kernel]) -> BlockKind:
    if tensor.is_global:
        return BlockKind.WEIGHT
    if maker is None:
        return BlockKind.INPUT if any(kernel.name in _READ_THE_BATCH for kernel in readers) else BlockKind.OTHER
    if maker.name == _LOAD:
        return BlockKind.INPUT
    if _phase(maker.name) is Phase.FORWARD:
        return BlockKind.ACTIVATION
    if any(_phase(kernel.name) is Phase.OPTIMIZER for kernel in readers):
        return BlockKind.WEIGHT_GRADIENT
    return BlockKind.GRADIENT


def _on_weights(tensors: Iterable[G10Tensor]) -> str:
    """A note on tensors flagged as weights: kernel results may be flagged too, so the total may be too high."""
    sizes = [tensor.bytes for tensor in tensors if tensor.is_global]
    if not sizes:
        return ""
    return (
        f" The files flag {len(sizes)} tensors as weights (global), {format_bytes(sum(sizes))} in all, the largest "
        f"{format_bytes(max(sizes))}; these flags are not verified."
    )


def _notes(kernels: Sequence[G10Kernel], durations: Sequence[int], has_workspaces: bool) -> str:
    cycles, total = sum(kernel.cycles for kernel in kernels), sum(durations)
    clock = round(Decimal(cycles) / total, 3) if total else Decimal(0)
    difference = max(abs(clock * duration - kernel.cycles) for kernel, duration in zip(kernels, durations, strict=True))
    agreement = "agree to the cycle" if difference <= 1 else f"are up to {difference:.0f} cycles off"
    scratch = "" if has_workspaces else " Workspaces are not recorded."
    return (
        "Each kernel was measured alone; G10 derived the graph and its tensors from a description of the network. The "
        f"times of kernels.config are {cycles} cycles, or {clock.normalize():f} GHz relative to the measured times; at "
        f"this clock they {agreement}. Lifetimes are not recorded.{scratch}"
    )


_TENSOR = re.compile(r"tensor(\d+) Is weight \(global\)\?: ([01]), Size in byte: (\d+), Range:(\d+)--(\d+)")
_KERNEL = re.compile(r"Kernel ID: (\d+), Name: (\S+)")
_PARENT = re.compile(r"Parent (?:OP|Layer) ID:(\d+); Name: ?(\S+)")
_CYCLES = re.compile(r"Execution Time: (\d+)")
_SIZES = re.compile(r"\(\d+,\d+,\d+,\d+\)")  # batch, channels, height, width of a convolutional network's layer
_RULER = re.compile(r"_{10,}")
_HEADS = ("Input Tensors:", "Output Tensors:")
_AGAIN = "write it again with G10"


@dataclass(frozen=True, slots=True)
class G10Tensor:
    """A line of tensors.config."""

    number: int
    is_global: bool
    bytes: int


@dataclass(slots=True)
class G10Kernel:
    """A paragraph of kernels.config.

    parent: the operator, used as layer.
    cycles: execution time in clock cycles.
    inputs, outputs: tensor numbers.
    """

    number: int
    name: str
    parent: str = ""
    cycles: int = 0
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)


def read_tensors(path: Path, problems: list[Problem]) -> dict[int, G10Tensor]:
    """Returns all tensors by number; adds invalid lines to `problems`."""
    tensors: dict[int, G10Tensor] = {}
    for row, line in _rows(path, problems):
        try:
            tensor = _tensor(line)
        except ValueError as error:
            problems.append(Problem(str(path), f"row {row}", str(error), _AGAIN))
            continue
        if tensor.number in tensors:
            problems.append(Problem(str(path), f"row {row}", f"tensor{tensor.number} is listed twice", _AGAIN))
        tensors[tensor.number] = tensor
    return tensors


def read_kernels(path: Path, tensors: Mapping[int, G10Tensor], problems: list[Problem]) -> list[G10Kernel]:
    """Returns all kernels in order. Stops at the first invalid line, because the following lines depend on it.

    tensors: the tensors of tensors.config, which those in kernels.config must match.
    """
    reader = _KernelReader(tensors)
    rows = _rows(path, problems)
    place = ""
    try:
        for row, line in rows:
            place = f"row {row}"
            reader.follow(line)
        if rows and not reader.is_between:
            raise ValueError("the last kernel has no line of underscores below it: the file seems cut off")
    except ValueError as error:
        problems.append(Problem(str(path), place, str(error), _AGAIN))
    return reader.kernels


def _rows(path: Path, problems: list[Problem]) -> list[tuple[int, str]]:
    """Returns non-blank lines with their numbers; for an unreadable file, adds a problem and returns none."""
    try:
        text = read_text(path, if_empty=_AGAIN)
    except InputError as error:
        problems += error.problems
        return []
    return [(row, line.strip()) for row, line in enumerate(text.split("\n"), start=1) if line.strip()]


def _tensor(line: str) -> G10Tensor:
    match = _TENSOR.fullmatch(line)
    if match is None:
        raise ValueError(f"{line[:60]!r} is not a tensor line of G10")
    number, is_global, size, begin, end = map(integer, match.groups())
    if end - begin != size:
        raise ValueError(f"tensor{number} has {size} B, its range {end - begin} B")
    return G10Tensor(number, bool(is_global), size)


class _KernelReader:
    """Parses kernels.config line by line; raises `ValueError` for an invalid line."""

    def __init__(self, tensors: Mapping[int, G10Tensor]) -> None:
        self.kernels: list[G10Kernel] = []
        self.is_between = True
        self._tensors = tensors
        self._lists: list[list[int]] = []

    def follow(self, line: str) -> None:
        if self.is_between:
            self._begin(line)
        elif _RULER.fullmatch(line):
            self._end()
        elif line in _HEADS:
            self._head(line)
        elif self._lists:
            self._mention(line)
        else:
            self._describe(line)

    def _begin(self, line: str) -> None:
        match = _KERNEL.fullmatch(line)
        if match is None:
            raise ValueError(f"{line[:60]!r} is not the start of a kernel (Kernel ID: 5, Name: Add_Forward)")
        if integer(match[1]) != len(self.kernels):
            raise ValueError(f"kernel {match[1]} instead of {len(self.kernels)}: kernels count from 0")
        self.kernels.append(G10Kernel(integer(match[1]), match[2]))
        self._lists = []
        self.is_between = False

    def _describe(self, line: str) -> None:
        kernel = self.kernels[-1]
        if match := _PARENT.fullmatch(line):
            kernel.parent = f"{match[2]}_{match[1]}"
        elif match := _CYCLES.fullmatch(line):
            kernel.cycles = integer(match[1])
        elif not _SIZES.fullmatch(line):
            raise ValueError(f"{line[:60]!r} is not a kernel's parent or execution time")

    def _head(self, line: str) -> None:
        kernel = self.kernels[-1]
        if line != _HEADS[min(len(self._lists), 1)] or len(self._lists) == len(_HEADS):
            raise ValueError(f"{line!r} is out of order: a kernel lists its inputs, then its outputs")
        self._lists.append(kernel.outputs if self._lists else kernel.inputs)

    def _mention(self, line: str) -> None:
        tensor = _tensor(line)
        if self._tensors and self._tensors.get(tensor.number) != tensor:
            known = tensor.number in self._tensors
            what = "is different in tensors.config" if known else "is not in tensors.config"
            raise ValueError(f"tensor{tensor.number} {what}")
        if tensor.number in self._lists[-1]:
            raise ValueError(f"tensor{tensor.number} is listed twice")
        self._lists[-1].append(tensor.number)

    def _end(self) -> None:
        kernel = self.kernels[-1]
        if not kernel.parent or not kernel.cycles or len(self._lists) < len(_HEADS):
            raise ValueError(f"kernel {kernel.number} lacks its parent, its execution time or its tensors")
        self.is_between = True
