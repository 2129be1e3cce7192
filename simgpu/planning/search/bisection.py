"""The largest number that fits, where asking whether one fits is dear."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simgpu.errors import InputError

#: So many numbers above an answer are tried before it stands.
NEIGHBOURS = 4


@dataclass(frozen=True)
class Largest:
    """The largest number found to fit, None where the lowest does not.

    tried: every number asked about and whether it fits, in ascending order. monotone: False if one that fits was seen
    above one that does not; then a larger one, out of sight, may fit too.
    """

    value: int | None
    tried: tuple[tuple[int, bool], ...]

    @property
    def monotone(self) -> bool:
        answers = [fits for _, fits in self.tried]
        return answers == sorted(answers, reverse=True)


def largest(
    fits: Callable[[int], bool],
    low: int = 1,
    high: int | None = None,
    *,
    cap: int = 2**30,
    neighbours: int = NEIGHBOURS,
) -> Largest:
    """The largest whole number from `low` on that fits, by doubling and halving; each number is asked about once.

    high: the largest number of interest. Without one, numbers double from `low` until one does not fit or `cap` is
    reached; an answer of `cap` then means that a larger one may fit as well.
    fits: need not be monotone. Before an answer stands, each of the `neighbours` numbers above it has been asked about;
    where one of them fits after all, the search goes on from there. What fits above a wider gap goes unseen.
    `InputError` for a lowest number below 1 or above the highest.

    >>> largest(lambda number: number**2 <= 2000)
    Largest(value=44, tried=((1, True), (2, True), (4, True), ..., (44, True), (45, False), ..., (64, False)))
    """
    top = cap if high is None else high
    if not 1 <= low <= top:
        raise InputError.single("", "low", f"{low} is not from 1 to {top}", "start lower, or end higher")
    tested = _Tested(fits)
    if not tested(low):
        return Largest(None, tested.tried)
    value = low
    if high is not None and tested(high):
        value = high
    while value < top:
        over = next((number for number, fit in tested.tried if number > value and not fit), None)
        if over is None:
            value, over = _double(tested, value, top)
        value = _halve(tested, value, over)
        above = range(value + 2, min(value + neighbours, top) + 1)
        higher = next((number for number in above if tested(number)), None)
        if higher is None:
            break
        value = higher
    return Largest(value, tested.tried)


class _Tested:
    """The predicate, and what it has said."""

    def __init__(self, fits: Callable[[int], bool]) -> None:
        self._fits = fits
        self._known: dict[int, bool] = {}

    def __call__(self, number: int) -> bool:
        if number not in self._known:
            self._known[number] = bool(self._fits(number))
        return self._known[number]

    @property
    def tried(self) -> tuple[tuple[int, bool], ...]:
        return tuple(sorted(self._known.items()))


def _double(tested: _Tested, value: int, top: int) -> tuple[int, int]:
    """From one that fits: the last that fits and the first that does not, or `top` and one more."""
    while value < top:
        following = min(2 * value, top)
        if not tested(following):
            return value, following
        value = following
    return top, top + 1


def _halve(tested: _Tested, fit: int, over: int) -> int:
    """Between one that fits and one that does not: one that fits, and whose successor does not."""
    while over - fit > 1:
        middle = (fit + over) // 2
        if tested(middle):
            fit = middle
        else:
            over = middle
    return fit
