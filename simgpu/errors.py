"""Every error that a user can meet, and the list of problems that input errors consist of."""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in an input: which file, where inside it, what is wrong, and what to do about it.

    >>> print(Problem("kernels.csv", "row 3, column duration_ns", "'-5' is negative", "give whole nanoseconds >= 0"))
    kernels.csv: row 3, column duration_ns: '-5' is negative; give whole nanoseconds >= 0
    """

    file: str
    place: str
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        where = ": ".join(part for part in (self.file, self.place) if part)
        text = f"{where}: {self.what}" if where else self.what
        return f"{text}; {self.remedy}" if self.remedy else text


class SimgpuError(Exception):
    """Base class of every error simgpu raises on purpose.

    A notebook shows its name and its text, as the command line does, in place of a traceback through simgpu.
    """

    def _render_traceback_(self) -> list[str]:
        """What IPython prints for it."""
        return [f"{type(self).__name__}: {self}"]


#: Number of problems of one kind in one column that are printed; the rest are counted.
_WRITTEN_OUT = 20
_VARYING = re.compile(r"'[^']*'|\d+")


class InputError(SimgpuError):
    """The user's input is wrong. Carries all problems found, not only the first.

    Its text leaves out what only repeats itself (see `lines`); `problems` is complete.

    >>> error = InputError([Problem("node.yaml", "gpu.memory", "'8' has no unit", "write for example '8 GiB'")])
    >>> len(error.problems)
    1
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        r"""The problems as text, one a line; of many that differ in row and value alone, the first 20 and a count.

        >>> rows = [Problem("blocks.csv", f"row {row}, column bytes", f"'-{row}' is negative") for row in range(2, 102)]
        >>> lines = InputError(rows).lines()
        >>> print(len(lines), *lines[-2:], sep="\n")
        21
        blocks.csv: row 21, column bytes: '-21' is negative
        blocks.csv: 80 more like that of row 21, column bytes
        """
        kinds = [_kind(problem) for problem in self.problems]
        total, printed = Counter(kinds), Counter[tuple[str, str, str]]()
        lines = []
        for problem, kind in zip(self.problems, kinds, strict=True):
            printed[kind] += 1
            if printed[kind] <= _WRITTEN_OUT:
                lines.append(str(problem))
            if printed[kind] == _WRITTEN_OUT < total[kind]:
                more = f"{total[kind] - _WRITTEN_OUT} more like that"
                lines.append(str(Problem(problem.file, "", f"{more} of {problem.place}" if problem.place else more)))
        return lines

    @classmethod
    def single(cls, file: str | Path, place: str, what: str, remedy: str = "") -> InputError:
        """An error with one problem."""
        return cls([Problem(str(file), place, what, remedy)])


def _kind(problem: Problem) -> tuple[str, str, str]:
    """What problems that differ only in numbers and quoted words have in common."""
    return problem.file, _VARYING.sub("#", problem.place), _VARYING.sub("#", problem.what)


class PolicyError(InputError):
    """A policy's own code failed, or what it planned is refused; the exception behind it is the `__cause__`.

    Built with `of`, it names the policy and the line of its file; the cause has the full traceback.

    >>> print(PolicyError.of("largest(count=3)", "plan raised IndexError: list index out of range", "largest.py:38"))
    largest.py:38: policy largest(count=3): plan raised IndexError: list index out of range
    """

    @classmethod
    def of(cls, label: str, what: str, where: str = "") -> PolicyError:
        """An error of the policy with that label. where: file and line, if known."""
        return cls([Problem(where, f"policy {label}", what)])

    def _render_traceback_(self) -> list[str]:
        """In a notebook, where policies are written too, with the traceback of what happened in the policy."""
        cause = self.__cause__
        return [*([] if cause is None else traceback.format_exception(cause)), *super()._render_traceback_()]


class Terminated(SystemExit):
    """A signal ends the program, so no code that is called may be blamed for it, or keep it from ending."""


class ProgramError(SimgpuError):
    """A program breaks a rule of `verify`; names the instruction and the block or kernel."""


@dataclass(eq=False, repr=False)
class OutOfMemoryError(SimgpuError):
    """The simulated run ran out of memory: no event can happen any more, and an instruction waits for memory.

    waiting: description of the waiting instruction. kernel: id of the next kernel of compute, empty if there is none.
    requested, free, largest_hole, capacity: bytes. holders: blocks that hold memory, (id, bytes), largest first.
    others: what waits for other memories at the same time, one of which may be the cause.
    SimPy recreates exceptions from `args`, so `args` contains all fields in their order.
    """

    waiting: str
    space: str
    requested: int
    free: int
    largest_hole: int
    capacity: int
    at_ns: int
    holders: tuple[tuple[str, int], ...] = ()
    kernel: str = ""
    others: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__init__(*(getattr(self, each.name) for each in fields(self)))

    def __str__(self) -> str:
        from simgpu.units import format_bytes, format_time

        held = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.holders[:8])
        if rest := self.holders[8:]:
            held += f", and {len(rest)} more with {format_bytes(sum(size for _, size in rest))}"
        if self.requested > self.capacity:
            need, there = format_bytes(self.requested), format_bytes(self.capacity)
            if need == there:  # what is written with four digits may differ by one byte
                need, there = f"{self.requested} B", f"{self.capacity} B"
            text = f"out of {self.space} memory: {self.waiting} needs {need}, which exceeds the {there} capacity"
            return f"{text}; largest: {held}" if held else text
        text = (
            f"out of {self.space} memory at {format_time(self.at_ns)}: {self.waiting} requests "
            f"{format_bytes(self.requested)}, {format_bytes(self.free)} of {format_bytes(self.capacity)} are free, "
            f"largest free block {format_bytes(self.largest_hole)}{''.join(f'; also: {each}' for each in self.others)}"
        )
        return f"{text}; resident: {held}" if held else text


@dataclass(eq=False, repr=False)
class MissingExtraError(SimgpuError):
    """A dependency is not installed: one of an extra, or one that is not available for every version of Python.

    >>> print(MissingExtraError("recording a model", "torch", "record"))
    recording a model needs torch, which is not installed; install torch, or simgpu with its extra 'record'
    """

    purpose: str
    package: str
    extra: str = ""

    def __post_init__(self) -> None:
        super().__init__(self.purpose, self.package, self.extra)

    def __str__(self) -> str:
        missing = f"{self.purpose} needs {self.package}, which is not installed; install {self.package}"
        if self.extra:
            return f"{missing}, or simgpu with its extra '{self.extra}'"
        return f"{missing} under a version of Python that it supports"


def shortened(problems: Sequence[Problem], most: int = 3) -> list[Problem]:
    """The first problems, and how many more there are.

    >>> [str(each) for each in shortened([Problem("plan", f"weight {n}", "is another") for n in range(5)], most=2)]
    ['plan: weight 0: is another', 'plan: weight 1: is another', 'plan: and 3 more']
    """
    rest = len(problems) - most
    return [*problems[:most], *([Problem(problems[0].file, "", f"and {rest} more")] if rest > 0 else [])]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A remedy that names the closest known word, and lists all of them; of many, only the nearest.

    >>> did_you_mean("vdn", ["ideal", "none", "vdnn"])
    "did you mean 'vdnn'? known: ideal, none, vdnn"
    >>> did_you_mean("vgg61", ["vgg11", "vgg16"]), did_you_mean("V1OO", ["k40", "v100"])
    ("did you mean 'vgg16'? known: vgg11, vgg16", "did you mean 'v100'? known: k40, v100")
    >>> did_you_mean("copy_out", ["compute", "copy_d2h"])
    "it is now called 'copy_d2h'; `python -m simgpu.migration FILE` rewrites files"
    >>> did_you_mean("gpu17", [f"gpu{n}" for n in range(100, 200)])
    "did you mean 'gpu197'? known: gpu174, gpu175, gpu176, gpu177, gpu178, gpu179, gpu187, gpu197 and 92 others"
    """
    from simgpu.former_names import name_today  # only a mistake needs these
    from simgpu.spelling import closest, listed

    words = sorted(known)
    if today := name_today(name, frozenset(words)):
        return f"it is now called {today!r}; {MIGRATE} rewrites files"
    close = closest(name, words)
    listing = f"known: {listed(name, words, close)}" if words else "none are known"
    return f"did you mean '{close}'? {listing}" if close else listing


#: What rewrites files of earlier versions.
MIGRATE = "`python -m simgpu.migration FILE`"
