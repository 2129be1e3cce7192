"""What every solver is: arrays, a run of equal steps, snapshots of the arrays, and the kernels of one step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from numpy.typing import NDArray

from simgpu.errors import InputError
from simgpu.workloads.solvers.work import Array, KernelWork

#: Snapshots of a run; the paper takes as many of each benchmark (section 3.1).
SNAPSHOTS = 10
#: Allocations by name, as they are at one moment.
State = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Solver(ABC):
    """A numerical method at one size, run with NumPy.

    Its state is what a GPU program would hold in device memory, one array for each allocation, from the first step to
    the last. Runs are deterministic. Sums are NumPy's own, not a BLAS's, so that they do not depend on threads; where
    a library function may round differently on another processor, the solver's docstring says so.
    """

    name: ClassVar[str]
    #: The benchmark of the Buddy Compression paper whose kind of computation it is; none of its code is here.
    like: ClassVar[str]
    #: The method in a few words, and what `size` counts.
    what: ClassVar[str]
    measure: ClassVar[str]
    #: Size of the run that is profiled, and the smallest that makes sense.
    usual_size: ClassVar[int]
    smallest_size: ClassVar[int]

    size: int

    @property
    @abstractmethod
    def steps(self) -> int:
        """Steps of the whole run."""

    @classmethod
    def at(cls, size: int | None = None) -> Self:
        """The solver at a size, or at its usual one, all else as usual."""
        return cls(cls.usual_size if size is None else size)

    @abstractmethod
    def arrays(self) -> dict[str, Array]:
        """Its allocations, without running."""

    @abstractmethod
    def states(self) -> Iterator[State]:
        """Runs it: its arrays after every step, the same objects each time, changed in place."""

    @abstractmethod
    def work(self) -> tuple[KernelWork, ...]:
        """The kernels of one step in order, without running."""

    @abstractmethod
    def reference(self) -> Solver:
        """The same problem at about the memory footprint of the benchmark in the paper's table 1; not to be run."""

    @property
    def scale(self) -> str:
        """Its size in words."""
        return f"{self.size} {self.measure}"

    @property
    def bytes(self) -> int:
        """Memory of all its allocations."""
        return sum(array.bytes for array in self.arrays().values())

    def moments(self, count: int = SNAPSHOTS) -> tuple[int, ...]:
        """The steps, from 1, at whose end equal parts of the run end.

        Raises `InputError` unless there are from 1 to as many parts as steps.
        """
        if not 1 <= count <= self.steps:
            what = f"{count} snapshots of a run of {self.steps} steps"
            raise InputError.single(self.name, "snapshots", what, f"give a whole number from 1 to {self.steps}")
        return tuple((part + 1) * self.steps // count for part in range(count))

    def snapshots(self, count: int = SNAPSHOTS) -> Iterator[State]:
        """Runs it and gives copies of its arrays at `count` `moments`; raises as these.

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
    """Raises `InputError` for a size below the solver's least, or that is not a multiple where one is needed."""
    if size < solver.smallest_size or size % multiple_of:
        minimum = f"at least {solver.smallest_size}"
        remedy = f"give {minimum}" if multiple_of == 1 else f"give a multiple of {multiple_of}, {minimum}"
        raise InputError.single(solver.name, "size", f"{size} is no number of {solver.measure} for it", remedy)
