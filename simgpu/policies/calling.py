"""Call a policy whose code may fail: a wrong exception or result becomes one `PolicyError` with file and line.

Use `planned` in place of `policy.plan`, `checked_fits` in place of `fits`, `reclaiming` in place of `reclaim`, and
`machine_of` in place of `machine`.
"""

from __future__ import annotations

import errno
import inspect
import traceback
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from simgpu.errors import InputError, MissingExtraError, OutOfMemoryError, PolicyError, Terminated
from simgpu.hardware.spec import NodeSpec
from simgpu.memory.chunks import Reclaim
from simgpu.policies.base import PlanContext, Policy, policy_label
from simgpu.program.check import not_a_program
from simgpu.program.faults import a_type, raised, shown
from simgpu.program.instructions import Program

_Answer = TypeVar("_Answer")


def planned(policy: Policy, context: PlanContext) -> Program:
    """The policy's program. Raises `PolicyError` if its code fails or returns anything but a program; its own
    `InputError`, `MissingExtraError` and `OutOfMemoryError` pass unchanged.

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
    program = _called(policy, "plan", lambda: policy.plan(context))
    if fault := not_a_program(program):
        raise PolicyError.of(policy_label(policy), fault, _definition(policy, "plan"))
    return program


def checked_fits(policy: Policy, context: PlanContext) -> bool | None:
    """The result of the policy's `fits`. Raises as `planned` does, also for anything but a bool or None."""
    answer: object = _called(policy, "fits", lambda: policy.fits(context))
    if answer is None or isinstance(answer, bool | np.bool_):  # comparing NumPy numbers gives NumPy's bool
        return None if answer is None else bool(answer)
    what = f"fits says {shown(answer)}, {a_type(answer)}: it must return a bool, or None where only a run tells"
    raise PolicyError.of(policy_label(policy), what, _definition(policy, "fits"))


def machine_of(policy: Policy, node: NodeSpec) -> NodeSpec:
    """The node as the policy uses it. Raises as `planned` does, also for anything but a node."""
    answer: object = _called(policy, "machine", lambda: policy.machine(node))
    if isinstance(answer, NodeSpec):
        return answer
    what = f"machine returns {shown(answer)}, {a_type(answer)}: it must return a NodeSpec"
    raise PolicyError.of(policy_label(policy), what, _definition(policy, "machine"))


def reclaiming(policy: Policy) -> Reclaim:
    """The policy's `reclaim`, which raises as `planned` does."""
    return lambda residents: _called(policy, "reclaim", lambda: policy.reclaim(residents))


def _called(policy: Policy, what: str, call: Callable[[], _Answer]) -> _Answer:
    try:
        return call()
    except (Terminated, MemoryError, BrokenPipeError):
        raise
    except (Exception, SystemExit) as error:  # an outside policy may fail in any way
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            raise
        if isinstance(error, InputError | MissingExtraError | OutOfMemoryError) and _readable(error):
            raise
        raise PolicyError.of(policy_label(policy), f"{what} raised {raised(error)}", _where(policy, error)) from error


def _readable(error: Exception) -> bool:
    """Whether an error can be formatted: a policy may have built it from wrong arguments."""
    try:
        return bool(str(error))
    except Exception:
        return False


def _where(policy: Policy, error: BaseException) -> str:
    """File and line in the policy's own package where an error occurred, else of the code that raised it."""
    frames = list(traceback.walk_tb(error.__traceback__))
    package = _package(type(policy).__module__)
    own = [each for each in frames if _package(each[0].f_globals.get("__name__", "")) == package]
    frame, line = (own or frames)[-1]
    return f"{frame.f_code.co_filename}:{line}"


def _package(module: str) -> str:
    return module.partition(".")[0]


def _definition(policy: Policy, name: str) -> str:
    """File and line of one of the policy's methods, empty where it is not a Python function."""
    code = getattr(inspect.unwrap(getattr(type(policy), name)), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""
