"""Checks of the arguments of `simgpu.simulate` and `simgpu.max_batch`, all told together."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.units import parse_bytes

#: The least that a whole number may be.
LEAST = {"iterations": 1, "seed": 0, "budget": 0, "alignment": 1, "epoch": 0, "gpus": 1, "cores": 1, "most": 1}

#: Whole numbers that may be left out.
OPTIONAL = ("budget", "alignment", "gpus")

_REMEDIES = {
    "trace": "load one with simgpu.load_trace",
    "node": "load one with simgpu.load_node",
    "policy": "give a policy's name, and its parameters apart",
    "iterations": "two or more also show whether the iteration is steady",
    "seed": "give a whole number",
    "epoch": "epochs count from 0",
    "budget": "give bytes, or a text such as '8 GiB'",
    "alignment": "give bytes, or a text such as '512 B'",
    "gpus": "give how many GPUs train together",
    "cores": "give how many cores of the host add up gradients",
    "more_memory": "give bytes, or a text such as '2 GiB'",
    "result": "give that of one run, for example comparison.results['vdnn']",
    "most": "give the largest number of samples to try",
}


def check_arguments(
    values: Mapping[str, object],
    kinds: Mapping[str, type | tuple[type, ...]],
    choices: Mapping[str, Collection[str]],
) -> None:
    """Refuse what is no argument of `simulate`; tells all problems together.

    kinds: classes of those that are objects. choices: words of those that are one of some; None stands for a default.

    >>> check_arguments({"iterations": 0, "pool": "adressed"}, {}, {"pool": ("addressed", "counting")})
    Traceback (most recent call last):
    simgpu.errors.InputError: argument iterations: 0 is not a whole number of at least 1; ...
    argument pool: unknown pool 'adressed'; did you mean 'addressed'? known: addressed, counting
    """
    problems = []
    for name, value in values.items():
        place = f"argument {name}"
        if name in LEAST:
            if value is None and name in OPTIONAL:
                continue
            if type(value) is not int or value < LEAST[name]:
                what = f"{value!r} is not a whole number of at least {LEAST[name]}"
                problems.append(Problem("", place, what, _REMEDIES[name]))
        elif name in choices:
            if value is not None and value not in choices[name]:
                problems.append(
                    Problem("", place, f"unknown {name} {value!r}", did_you_mean(str(value), choices[name]))
                )
        elif not isinstance(value, kinds[name]):
            problems.append(Problem("", place, f"{str(value)[:60]!r} is no {name}", _REMEDIES[name]))
    if problems:
        raise InputError(problems)


def bytes_of(name: str, value: int | str | None) -> int | None:
    """Bytes of a size given as text; anything else is left to the check of the arguments."""
    if not isinstance(value, str):
        return value
    try:
        return parse_bytes(value)
    except ValueError as error:
        raise InputError.single("", f"argument {name}", str(error), _REMEDIES[name]) from None
