"""The largest number that fits, where testing a number is expensive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simgpu.errors import InputError

#: Numbers above a result that are tested before it is final.
NEIGHBOURS = 4
#: Numbers that `largest_by_guess` tests by guesses before it bisects.
GUESSES = 6


@dataclass(frozen=True)
class Largest:
    """The largest number that fits, None if the lowest does not.

    tried: every tested number and whether it fits, in ascending order. monotone: False if a number fits above one that
    does not; then a larger, untested one may fit too.
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
    """The largest integer from `low` on that fits, by doubling and bisection; each number is tested once.

    high: the largest number to consider. Without it, numbers double from `low` until one does not fit or `cap` is
    reached; a result of `cap` means that a larger one may fit too.
    fits: need not be monotone. Before a result is final, each of the `neighbours` numbers above it is tested; if one of
    them fits, the search continues from there. Numbers above a wider gap are missed.
    Raises `InputError` for a lowest number below 1 or above the highest.

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
    """The predicate with its cached results."""

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
    """Double from a number that fits: the last that fits and the first that does not, or `top` and `top + 1`."""
    while value < top:
        following = min(2 * value, top)
        if not tested(following):
            return value, following
        value = following
    return top, top + 1


def _halve(tested: _Tested, fit: int, over: int) -> int:
    """Between a number that fits and one that does not: one that fits and whose successor does not."""
    while over - fit > 1:
        middle = (fit + over) // 2
        if tested(middle):
            fit = middle
        else:
            over = middle
    return fit


def largest_by_guess(fits: Callable[[int], bool], top: int, guess: Callable[[int, int], int]) -> int | None:
    """The largest integer from 0 to `top` that fits, None if 0 does not, where all numbers below one that fits do, too.

    guess: returns the next number to test, given the largest so far that fits (-1 for none) and the smallest that does
    not (``top + 1`` for none); the nearest number between them is tested. After `GUESSES` the interval is halved.

    >>> tested = []
    >>> largest_by_guess(lambda number: tested.append(number) or number <= 70, 100, lambda fit, over: 70)
    70
    >>> tested
    [70, 71]
    """
    fit, over, guesses = -1, top + 1, 0
    while over - fit > 1:
        number = guess(fit, over) if guesses < GUESSES else (fit + over) // 2
        number, guesses = min(max(number, fit + 1), over - 1), guesses + 1
        fit, over = (number, over) if fits(number) else (fit, number)
    return fit if fit >= 0 else None
