"""Vectors of options, their scores, and the result of a search.

A vector has one entry per position; the entry is the index of one of that position's options. Vectors come in batches,
so that many can be scored at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simgpu.errors import InputError, Problem

#: A batch of vectors, shape (vectors, positions).
Vectors = NDArray[np.int8]
#: The cost of each vector of a batch, shape (vectors,); less is better.
Costs = NDArray[np.int64]
#: Scores a batch. It must neither change nor keep its argument, and equal vectors must cost the same.
Score = Callable[[Vectors], Costs]

#: An entry is an int8.
MOST_OPTIONS = 127


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    best: the cheapest scored vector, as a tuple. cost: its cost. evaluations: number of scored vectors.
    """

    best: tuple[int, ...]
    cost: int
    evaluations: int


def scored(score: Score, vectors: Vectors) -> Costs:
    """The costs of a batch, in a new array; an empty batch is not scored.

    Raises `ValueError` if the score does not return one signed integer per vector.

    >>> scored(lambda vectors: vectors.sum(axis=1), np.array([[0, 1], [2, 2]], dtype=np.int8))
    array([1, 4])
    """
    if len(vectors) == 0:
        return np.empty(0, dtype=np.int64)
    costs = np.asarray(score(vectors))
    if costs.shape != (len(vectors),) or not np.issubdtype(costs.dtype, np.signedinteger):
        what = f"the score of {len(vectors)} vectors is an array of {costs.dtype} with shape {costs.shape}"
        raise ValueError(f"{what}; return one signed integer for each vector")
    return costs.astype(np.int64)


def choice_problems(choices: Sequence[int]) -> list[Problem]:
    """The problems of numbers of options per position.

    >>> [str(problem) for problem in choice_problems([3, 0])]
    ['choices: position 1 has 0 options; give from 1 to 127']
    """
    return [
        Problem("", "choices", f"position {at} has {count} options", f"give from 1 to {MOST_OPTIONS}")
        for at, count in enumerate(choices)
        if not 1 <= count <= MOST_OPTIONS
    ]


def start_problems(start: Iterable[Sequence[int]], choices: Sequence[int]) -> list[Problem]:
    """The problems of start vectors.

    >>> [str(problem) for problem in start_problems([(0, 3), (1,)], [2, 2])]
    ['start: vector 0, position 1 has option 3 of 2; options count from 0', 'start: vector 1 has 1 of 2 positions']
    """
    problems = []
    for number, vector in enumerate(start):
        place = f"vector {number}"
        if len(vector) != len(choices):
            problems.append(Problem("", "start", f"{place} has {len(vector)} of {len(choices)} positions"))
            continue
        problems += [
            Problem("", "start", f"{place}, position {at} has option {option} of {count}", "options count from 0")
            for at, (option, count) in enumerate(zip(vector, choices, strict=True))
            if not 0 <= option < count
        ]
    return problems


def checked(problems: Sequence[Problem]) -> None:
    """Raise `InputError` with all problems, if there are any."""
    if problems:
        raise InputError(problems)


def as_tuple(vector: NDArray[np.int8]) -> tuple[int, ...]:
    """One vector as plain numbers.

    >>> as_tuple(np.array([2, 0], dtype=np.int8))
    (2, 0)
    """
    return tuple(vector.tolist())
