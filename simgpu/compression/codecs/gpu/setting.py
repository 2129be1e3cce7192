"""Launch settings of a codec's kernels: thread blocks in the grid, and threads per block."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from simgpu.errors import InputError, Problem, did_you_mean

Integers = NDArray[np.int64]

#: The largest grid of the search, and the block sizes: CSWAP, section IV-D.
LARGEST_GRID = 4096
THREADS = (64, 128)
#: Blocks per multiprocessor in the expert's setting of CSWAP; assumed, see `simgpu.compression.codecs.gpu.paper`.
EXPERT_BLOCKS = 8


@dataclass(frozen=True, slots=True, order=True)
class LaunchSetting:
    """A grid of thread blocks, 1..4096, of 64 or 128 threads each. Raises `InputError` for anything else.

    >>> str(LaunchSetting(199, 64))
    '(199, 64)'
    """

    grid: int
    threads: int

    def __post_init__(self) -> None:
        problems = launch_problems(self.grid, self.threads)
        if problems:
            raise InputError(problems)

    def __str__(self) -> str:
        return f"({self.grid}, {self.threads})"


def all_settings() -> tuple[Integers, Integers]:
    """Grids and threads of all valid settings: first those with 64 threads, grids ascending from 1.

    >>> grids, threads = all_settings()
    >>> len(grids), (int(grids[-1]), int(threads[-1]))
    (8192, (4096, 128))
    """
    grids = np.arange(1, LARGEST_GRID + 1, dtype=np.int64)
    return np.tile(grids, len(THREADS)), np.repeat(np.array(THREADS, np.int64), LARGEST_GRID)


def launch_problems(grid: object, threads: object) -> list[Problem]:
    """The problems of a grid and a block size; empty if both are valid."""
    problems = []
    if not is_integer(grid) or not 1 <= grid <= LARGEST_GRID:
        problems.append(Problem("", "grid", f"{grid!r} is not a grid", f"give 1 to {LARGEST_GRID} thread blocks"))
    if threads not in THREADS:
        sizes = " or ".join(str(count) for count in THREADS)
        problems.append(Problem("", "threads", f"{threads!r} is not a block size", f"give {sizes} threads"))
    return problems


def tensor_problems(codec: str, tensor_bytes: object, sparsity: object, known: Iterable[str]) -> list[Problem]:
    """The problems of a codec's name, a tensor's bytes and its sparsity; empty if all are valid."""
    problems, known = [], tuple(known)
    if codec not in known:
        problems.append(Problem("", "codec", f"no times on a GPU are known for {codec!r}", did_you_mean(codec, known)))
    if not is_integer(tensor_bytes) or tensor_bytes < 0:
        problems.append(
            Problem("", "bytes", f"{tensor_bytes!r} is not a size", "give an integer number of bytes, 0 or more")
        )
    if not isinstance(sparsity, float | int | np.floating) or not 0 <= sparsity <= 1:  # a NaN is within no bounds
        problems.append(Problem("", "sparsity", f"{sparsity!r} is not a share of zeros", "give a number from 0 to 1"))
    return problems


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is an integer of Python or NumPy; booleans are not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
