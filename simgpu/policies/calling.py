"""Calling a policy whose code may fail: whatever it raises or returns becomes one `PolicyError` that says where.

Use `planned` in place of `policy.plan`, and likewise `says_it_fits` and `reclaiming`.
"""

from __future__ import annotations

import errno
import inspect
import traceback
from collections.abc import Callable
from typing import TypeVar

from simgpu.errors import InputError, MissingExtraError, OutOfMemoryError, PolicyError
from simgpu.memory.paged import Chunk, ResidentChunks
from simgpu.policies.base import PlanContext, Policy
from simgpu.policies.labels import policy_label
from simgpu.program.check import not_a_program
from simgpu.program.instructions import Program

_Answer = TypeVar("_Answer")


def planned(policy: Policy, context: PlanContext) -> Program:
    """What the policy plans. Raises `PolicyError` if its code fails or returns anything but a program; what it refuses
    with (`InputError`, `MissingExtraError`, `OutOfMemoryError`) is raised as it is.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Empty(Policy):
    ...     name, summary, source = "empty", "plans nothing", "an example"
    ...     def plan(self, context):
    ...         pass
    >>> planned(Empty(), None)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    simgpu.errors.PolicyError: ...: policy empty: None is not a Program: a plan must return one
    """
    program = _asked(policy, "plan", lambda: policy.plan(context))
    if fault := not_a_program(program):
        raise PolicyError.of(policy_label(policy), fault, _definition(policy))
    return program


def says_it_fits(policy: Policy, context: PlanContext) -> bool | None:
    """What the policy's `fits` says. Raises as `planned` does."""
    return _asked(policy, "fits", lambda: policy.fits(context))


def reclaiming(policy: Policy) -> Callable[[ResidentChunks], Chunk]:
    """The policy's `reclaim`, which raises as `planned` does."""
    return lambda residents: _asked(policy, "reclaim", lambda: policy.reclaim(residents))


def _asked(policy: Policy, what: str, ask: Callable[[], _Answer]) -> _Answer:
    try:
        return ask()
    except (InputError, MissingExtraError, OutOfMemoryError, MemoryError, BrokenPipeError):
        raise
    except Exception as error:  # an outside policy may fail in any way
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            raise
        told = f"{what} raised {type(error).__name__}" + (f": {error}" if str(error) else "")
        raise PolicyError.of(policy_label(policy), told, _where(policy, error)) from error


def _where(policy: Policy, error: Exception) -> str:
    """File and line of the policy's own package in which an error came up, else of the code that raised it."""
    frames = list(traceback.walk_tb(error.__traceback__))
    package = _package(type(policy).__module__)
    own = [each for each in frames if _package(each[0].f_globals.get("__name__", "")) == package]
    frame, line = (own or frames)[-1]
    return f"{frame.f_code.co_filename}:{line}"


def _package(module: str) -> str:
    return module.partition(".")[0]


def _definition(policy: Policy) -> str:
    code = inspect.unwrap(type(policy).plan).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"
