"""Gaussian pairs from random numbers, counted by annulus: the kernel of NAS EP, data-parallel.

Similar to 352.ep. Bailey et al., The NAS Parallel Benchmarks, RNR-94-007, section 2.2.1: uniform pairs (x, y) in
(-1, 1)^2 with t = x^2 + y^2 <= 1 give the independent Gaussian deviates x s and y s, s = sqrt(-2 ln t / t). The
deviates are summed, and counted by the square annulus l <= max(|X|, |Y|) < l + 1.

Every GPU thread has its own seed, sums and tallies, as in programs that avoid atomic operations. One step is a batch:
each thread generates `PAIRS` pairs from its own part of the sequence. The tallies of an annulus are contiguous, so
neighbouring threads access neighbouring values. The outer annuli, which few pairs reach, stay zero.

The logarithm may differ in its last bit between processors, and so may the last bits of the sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from simgpu.workloads.solvers import nas_random
from simgpu.workloads.solvers.solver import Solver, State, check_size
from simgpu.workloads.solvers.work import Array, KernelWork, once
from simgpu.workloads.timemodel.operation import OperationKind

#: The seed of NAS EP, and its number of annuli.
_SEED = 271828183
ANNULI = 10
#: Pairs per thread and batch: few, so that memory accesses are as important as in the benchmark.
PAIRS = 8
_TALLIES = tuple(f"tally{annulus}" for annulus in range(ANNULI))
#: Operations of a uniform number in double arithmetic (the generator of RNR-94-007 splits factors into halves); of a
#: logarithm; and of a division or square root. A GPU computes the latter with polynomials and Newton steps: these
#: numbers are assumed, not counted.
_UNIFORM, _LOGARITHM, _DIVISION = 18, 20, 8
#: Operations per pair: both numbers, 2u - 1 for both, t and its test.
_PAIR_FLOPS = 2 * _UNIFORM + 2 * 2 + 3 + 1
#: Operations per accepted pair: ln, / t, times -2, sqrt; both deviates, |X| and |Y|, maximum, annulus; tally and sums.
_KEPT_FLOPS = _LOGARITHM + 2 * _DIVISION + 1 + 2 + 2 + 1 + 1 + 3


@dataclass(frozen=True)
class RandomNumbers(Solver):
    """NAS EP with `size` threads; for example, 65536 threads and 32 steps are the 2**24 pairs of NAS class S.

    >>> solver = RandomNumbers(size=64, steps=2)
    >>> *_, last = solver.states()
    >>> int(sum(last[f"tally{l}"].sum() for l in range(ANNULI))), solver.pairs
    (796, 1024)
    """

    name: ClassVar[str] = "ep"
    like: ClassVar[str] = "352.ep"
    what: ClassVar[str] = "Gaussian pairs from random numbers, tallied thread by thread (NAS EP)"
    measure: ClassVar[str] = "threads"
    usual_size: ClassVar[int] = 32768
    smallest_size: ClassVar[int] = 16

    size: int = usual_size
    steps: int = 40

    def __post_init__(self) -> None:
        check_size(type(self), self.size)

    @property
    def pairs(self) -> int:
        """Pairs of the run."""
        return self.size * self.steps * PAIRS

    def arrays(self) -> dict[str, Array]:
        """Seeds, sums of both deviates, and tallies; all are doubles, as in NAS."""
        return {name: Array((self.size,), "float64") for name in ("seeds", "sum_x", "sum_y", *_TALLIES)}

    def states(self) -> Iterator[State]:
        """Yields the state after each batch of `size` * `PAIRS` pairs of NAS EP's sequence."""
        state = {name: np.zeros(array.shape, array.dtype) for name, array in self.arrays().items()}
        own = 2 * PAIRS
        seeds = np.concatenate([np.array([_SEED], np.uint64), nas_random.sequence(_SEED, self.size - 1, own)])
        for _ in range(self.steps):
            _batch(state, seeds)
            seeds = nas_random.further(seeds, nas_random.power(own * self.size))
            state["seeds"][:] = seeds
            yield state

    def work(self) -> tuple[KernelWork, ...]:
        """Kernels: the pairs with their tallies, the jump to the next batch's seeds, and the sums over threads."""
        arrays, threads = self.arrays(), self.size
        own = ("sum_x", "sum_y", *_TALLIES)
        flops = threads * PAIRS * _PAIR_FLOPS + round(threads * PAIRS * np.pi / 4) * _KEPT_FLOPS
        flops += threads * len(own)
        elementwise, reduction = OperationKind.ELEMENTWISE, OperationKind.REDUCTION
        return (
            KernelWork("gaussian_pairs", elementwise, flops, threads, True, once(arrays, ("seeds", *own), own)),
            KernelWork(
                "jump_ahead", elementwise, threads * _UNIFORM, threads, True, once(arrays, ["seeds"], ["seeds"])
            ),
            KernelWork("sum", reduction, threads * len(own), len(own), True, once(arrays, own)),
        )

    def reference(self) -> RandomNumbers:
        """2.75 GB."""
        return RandomNumbers(size=26_443_776, steps=self.steps)


def _batch(state: State, seeds: nas_random.Seeds) -> None:
    for _ in range(PAIRS):
        seeds = nas_random.further(seeds, nas_random.MULTIPLIER)
        x = 2.0 * nas_random.uniform(seeds) - 1.0
        seeds = nas_random.further(seeds, nas_random.MULTIPLIER)
        y = 2.0 * nas_random.uniform(seeds) - 1.0
        _tally(state, x, y)


def _tally(state: State, x: NDArray[Any], y: NDArray[Any]) -> None:
    square = x * x + y * y
    retained = np.flatnonzero(square <= 1.0)
    x, y, square = x[retained], y[retained], square[retained]
    scale = np.sqrt(-2.0 * np.log(square) / square)
    x, y = x * scale, y * scale
    state["sum_x"][retained] += x
    state["sum_y"][retained] += y
    annulus = np.maximum(np.abs(x), np.abs(y)).astype(np.int64)
    for number, tally in enumerate(_TALLIES):
        state[tally][retained[annulus == number]] += 1.0
