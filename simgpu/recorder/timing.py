"""The timing pass, which measures only the duration of every operator."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from simgpu.errors import InputError
from simgpu.recorder.clocks import Clock, CudaClock, HostClock
from simgpu.recorder.iteration import NoWatcher, run_iteration
from simgpu.recorder.scratch import ScratchMeter
from simgpu.recorder.workload import Workload

#: (operator, shape of its result), which must be the same in every iteration.
Signature = tuple[str, tuple[int, ...] | None]


def signature(func: Any, returned: Any) -> Signature:
    """Returns the signature of a call.

    >>> signature(torch.ops.aten.relu.default, torch.ones(2))
    ('aten.relu.default', (2,))
    """
    return str(func), tuple(returned.shape) if isinstance(returned, torch.Tensor) else None


def expect_same(name: str, expected: Sequence[Signature], signatures: Sequence[Signature]) -> None:
    """Raises `InputError` naming `name` if two iterations ran different operators."""
    for place, (one, other) in enumerate(zip_longest(expected, signatures)):
        if one != other:
            what = f"operator {place} is {_described(one)} in one iteration and {_described(other)} in another"
            remedy = "record a model that runs the same operators on the same shapes in every iteration"
            raise InputError.single(name, "iteration", what, remedy)


def _described(signature: Signature | None) -> str:
    return "missing" if signature is None else f"{signature[0]} of shape {signature[1]}"


def time_iteration(
    name: str,
    workload: Workload,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    expected: Sequence[Signature],
) -> list[int]:
    """Returns the nanoseconds of every operator call of one iteration; the calls must match `expected`."""
    clock: Clock = CudaClock() if device.type == "cuda" else HostClock()
    timing = TimingPass(clock)
    with timing:
        run_iteration(workload, optimizer, timing)
    expect_same(name, expected, timing.signatures)
    return timing.durations()


class TimingPass(TorchDispatchMode, NoWatcher):
    """Times the call of each operator in one iteration."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.signatures: list[Signature] = []
        self._clock = clock
        self._marks: list[tuple[Any, Any]] = []

    @classmethod
    def is_infra_mode(cls) -> bool:
        """True: otherwise PyTorch would not run compiled code while this mode is active."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        begin = self._clock.mark()
        returned = func(*args, **named)
        self._marks.append((begin, self._clock.mark()))
        self.signatures.append(signature(func, returned))
        return returned

    def durations(self) -> list[int]:
        """Returns the nanoseconds of each operator call, in order."""
        return self._clock.durations(self._marks)


class MeteredTiming(TimingPass):
    """Times the operators of a step while a structure pass observes it; give it to that pass as its meter.

    The structure pass measures values with operators of its own, which are not timed.
    """

    def __init__(self, clock: Clock, scratch: ScratchMeter) -> None:
        super().__init__(clock)
        self._scratch = scratch
        self._is_next = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        is_timed, self._is_next = self._is_next, False
        return super().__torch_dispatch__(func, types, args, kwargs) if is_timed else func(*args, **(kwargs or {}))

    def start(self) -> None:
        """Times the next operator."""
        self._scratch.start()
        self._is_next = True

    def used(self) -> int:
        """Returns the workspace bytes of the last operator."""
        return self._scratch.used()
