"""The two files of a G10 folder that hold its graph: tensors.config and kernels.config, line by line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from simgpu.errors import InputError, Problem
from simgpu.importers.quantities import whole
from simgpu.io.text_files import read_text

_TENSOR = re.compile(r"tensor(\d+) Is weight \(global\)\?: ([01]), Size in byte: (\d+), Range:(\d+)--(\d+)")
_KERNEL = re.compile(r"Kernel ID: (\d+), Name: (\S+)")
_PARENT = re.compile(r"Parent (?:OP|Layer) ID:(\d+); Name: ?(\S+)")
_CYCLES = re.compile(r"Execution Time: (\d+)")
_SIZES = re.compile(r"\(\d+,\d+,\d+,\d+\)")  # batch, channels, height, width of a convolutional network's layer
_RULER = re.compile(r"_{10,}")
_HEADS = ("Input Tensors:", "Output Tensors:")
_AGAIN = "write it again with G10"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A line of tensors.config."""

    number: int
    is_global: bool
    bytes: int


@dataclass(slots=True)
class GraphKernel:
    """A paragraph of kernels.config; inputs and outputs are numbers of tensors, `parent` its operator, as a layer."""

    number: int
    name: str
    parent: str = ""
    cycles: int = 0
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)


def read_tensors(path: Path, problems: list[Problem]) -> dict[int, Tensor]:
    """All tensors by their number; lines that cannot be followed become problems."""
    tensors: dict[int, Tensor] = {}
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


def read_kernels(path: Path, tensors: Mapping[int, Tensor], problems: list[Problem]) -> list[GraphKernel]:
    """All kernels in order; the first line that cannot be followed ends the reading, as those below hang on it.

    tensors: those of tensors.config, with which every mention must agree.
    """
    reader = _KernelReader(tensors)
    rows = _rows(path, problems)
    place = ""
    try:
        for row, line in rows:
            place = f"row {row}"
            reader.follow(line)
        if rows and not reader.is_between:
            raise ValueError("the last kernel has no ruler below it: the file seems cut off")
    except ValueError as error:
        problems.append(Problem(str(path), place, str(error), _AGAIN))
    return reader.kernels


def _rows(path: Path, problems: list[Problem]) -> list[tuple[int, str]]:
    """Lines that are not blank, with their numbers; none where the file cannot be read, which becomes a problem."""
    try:
        text = read_text(path, if_empty=_AGAIN)
    except InputError as error:
        problems += error.problems
        return []
    return [(row, line.strip()) for row, line in enumerate(text.split("\n"), start=1) if line.strip()]


def _tensor(line: str) -> Tensor:
    match = _TENSOR.fullmatch(line)
    if match is None:
        raise ValueError(f"{line[:60]!r} is not a tensor as G10 writes it")
    number, is_global, size, begin, end = map(whole, match.groups())
    if end - begin != size:
        raise ValueError(f"tensor{number} has {size} B, its range {end - begin} B")
    return Tensor(number, bool(is_global), size)


class _KernelReader:
    """Follows the lines of kernels.config; `ValueError` says what is wrong with one."""

    def __init__(self, tensors: Mapping[int, Tensor]) -> None:
        self.kernels: list[GraphKernel] = []
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
            raise ValueError(f"{line[:60]!r} where a kernel begins (Kernel ID: 5, Name: Add_Forward)")
        if whole(match[1]) != len(self.kernels):
            raise ValueError(f"kernel {match[1]} where {len(self.kernels)} comes next: kernels count from 0")
        self.kernels.append(GraphKernel(whole(match[1]), match[2]))
        self._lists = []
        self.is_between = False

    def _describe(self, line: str) -> None:
        kernel = self.kernels[-1]
        if match := _PARENT.fullmatch(line):
            kernel.parent = f"{match[2]}_{match[1]}"
        elif match := _CYCLES.fullmatch(line):
            kernel.cycles = whole(match[1])
        elif not _SIZES.fullmatch(line):
            raise ValueError(f"{line[:60]!r} is not a kernel's parent or execution time")

    def _head(self, line: str) -> None:
        kernel = self.kernels[-1]
        if line != _HEADS[min(len(self._lists), 1)] or len(self._lists) == len(_HEADS):
            raise ValueError(f"{line!r} does not come here: a kernel lists its inputs, then its outputs")
        self._lists.append(kernel.outputs if self._lists else kernel.inputs)

    def _mention(self, line: str) -> None:
        tensor = _tensor(line)
        if self._tensors and self._tensors.get(tensor.number) != tensor:
            known = tensor.number in self._tensors
            what = "is another one in tensors.config" if known else "is not in tensors.config"
            raise ValueError(f"tensor{tensor.number} {what}")
        if tensor.number in self._lists[-1]:
            raise ValueError(f"tensor{tensor.number} is listed twice")
        self._lists[-1].append(tensor.number)

    def _end(self) -> None:
        kernel = self.kernels[-1]
        if not kernel.parent or not kernel.cycles or len(self._lists) < len(_HEADS):
            raise ValueError(f"kernel {kernel.number} lacks its parent, its execution time or its tensors")
        self.is_between = True
