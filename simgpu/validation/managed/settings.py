"""The settings of a method, in the words of its twin's parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.validation.measured import Method

_KNOWN: dict[Method, tuple[str, ...]] = {
    Method.PLAIN: (),
    Method.CHECKPOINT: ("blocks",),
    Method.SAVE_ON_CPU: (),
    Method.ASYNC_OFFLOAD: ("prefetch", "stash", "min_bytes"),
}


def check_settings(method: Method, settings: Mapping[str, Any]) -> None:
    """Raises `InputError` with everything that is wrong.

    >>> check_settings(Method.ASYNC_OFFLOAD, {"prefetch": 2, "stash": 2, "min_bytes": 0})
    >>> check_settings(Method.CHECKPOINT, {"block": ["layer1"]})
    Traceback (most recent call last):
    simgpu.errors.InputError: checkpoint: settings: there is no 'block'; did you mean 'blocks'? known: blocks
    checkpoint: settings: 'blocks' is missing; give paths of modules
    """
    known = _KNOWN[method]
    problems = [
        Problem(method, "settings", f"there is no {name!r}", did_you_mean(name, known))
        for name in settings
        if name not in known
    ]
    for name in known:
        remedy = "give paths of modules" if name == "blocks" else "give a whole number >= 0"
        if name not in settings:
            problems.append(Problem(method, "settings", f"{name!r} is missing", remedy))
        elif not (_are_paths if name == "blocks" else _is_count)(settings[name]):
            problems.append(Problem(method, name, f"{settings[name]!r} will not do", remedy))
    if problems:
        raise InputError(problems)


def _are_paths(value: object) -> bool:
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    return listed and bool(value) and all(isinstance(path, str) for path in value)  # type: ignore[attr-defined]


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
