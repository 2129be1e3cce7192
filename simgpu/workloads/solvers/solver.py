"""`Solver`, the base class of all solvers: arrays, a run of equal steps, snapshots, and the kernels of one step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from numpy.typing import NDArray

from simgpu.errors import InputError
from simgpu.workloads.solvers.work import Array, KernelWork

#: Snapshots per run, as in the paper (section 3.1).
SNAPSHOTS = 10
#: Contents of all allocations at one time, by name.
State = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Solver(ABC):
    """A numerical method at one size, run with NumPy.

    Its state is what a GPU program would hold in device memory during the run: one array per allocation. Runs are
    deterministic. Sums are computed by NumPy, not by a BLAS, so that they do not depend on threads. A solver's
    docstring states if a library function may round differently on another processor.
    """

    name: ClassVar[str]
    #: The similar benchmark of the Buddy Compression paper; simgpu contains none of its code.
    like: ClassVar[str]
    #: A short description of the method, and the unit of `size`.
    what: ClassVar[str]
    measure: ClassVar[str]
    #: Default size of the profiled run, and the smallest valid size.
    usual_size: ClassVar[int]
    smallest_size: ClassVar[int]

    size: int

    @property
    @abstractmethod
    def steps(self) -> int:
        """Steps of the run."""

    @classmethod
    def at(cls, size: int | None = None) -> Self:
        """The solver at a size, by default its usual size; all other parameters have their defaults."""
        return cls(cls.usual_size if size is None else size)

    @abstractmethod
    def arrays(self) -> dict[str, Array]:
        """The allocations by name, without running the solver."""

    @abstractmethod
    def states(self) -> Iterator[State]:
        """Runs the solver and yields its arrays after every step: the same objects each time, changed in place."""

    @abstractmethod
    def work(self) -> tuple[KernelWork, ...]:
        """The kernels of one step in order, without running the solver."""

    @abstractmethod
    def reference(self) -> Solver:
        """The same problem with about the benchmark's memory footprint in the paper's table 1; not meant to be run."""

    @property
    def scale(self) -> str:
        """Its size with the unit, for messages."""
        return f"{self.size} {self.measure}"

    @property
    def bytes(self) -> int:
        """Total bytes of its allocations."""
        return sum(array.bytes for array in self.arrays().values())

    def moments(self, count: int = SNAPSHOTS) -> tuple[int, ...]:
        """The steps, counted from 1, at which snapshots are taken: the last ones of `count` equal parts of the run.

        Raises `InputError` unless 1 <= count <= steps.
        """
        if not 1 <= count <= self.steps:
            what = f"cannot take {count} snapshots of a run of {self.steps} steps"
            raise InputError.single(self.name, "snapshots", what, f"give a whole number from 1 to {self.steps}")
        return tuple((part + 1) * self.steps // count for part in range(count))

    def snapshots(self, count: int = SNAPSHOTS) -> Iterator[State]:
        """Runs the solver and yields copies of its arrays at the `moments`; raises the same errors.

        >>> from simgpu.workloads.solvers.random_numbers import RandomNumbers
        >>> solver = RandomNumbers(size=32, steps=4)
        >>> solver.moments(2), [int(state["tally0"].sum()) for state in solver.snapshots(2)]
        ((2, 4), [198, 372])
        """
        wanted = self.moments(count)
        for step, state in enumerate(self.states(), start=1):
            if step in wanted:
                yield {name: array.copy() for name, array in state.items()}


def check_size(solver: type[Solver], size: int, multiple_of: int = 1) -> None:
    """Raises `InputError` for a size below the solver's minimum, or that is not a multiple of `multiple_of`."""
    if size < solver.smallest_size or size % multiple_of:
        minimum = f"at least {solver.smallest_size}"
        remedy = f"use {minimum}" if multiple_of == 1 else f"use a multiple of {multiple_of}, {minimum}"
        raise InputError.single(solver.name, "size", f"{size} {solver.measure} is not a supported size", remedy)
