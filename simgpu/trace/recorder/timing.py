"""The timing pass: how long every operator takes, and nothing else.

Lives here: the thinnest interception that can tell durations. Does not live here: what operators did (`structure`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from simgpu.trace.model import Phase
from simgpu.trace.recorder.clocks import Clock

#: What must be the same each time an operator of an iteration runs: which one it is and the shape of its result.
Signature = tuple[str, tuple[int, ...] | None]


def signature(func: Any, returned: Any) -> Signature:
    """The signature of a call.

    >>> signature(torch.ops.aten.relu.default, torch.ones(2))
    ('aten.relu.default', (2,))
    """
    return str(func), tuple(returned.shape) if isinstance(returned, torch.Tensor) else None


class TimingPass(TorchDispatchMode):  # type: ignore[misc]
    """Times the call of each operator; watches one iteration."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.signatures: list[Signature] = []
        self._clock = clock
        self._marks: list[tuple[Any, Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        begin = self._clock.mark()
        returned = func(*args, **named)
        self._marks.append((begin, self._clock.mark()))
        self.signatures.append(signature(func, returned))
        return returned

    def begin(self, phase: Phase) -> None:
        """Phases do not matter here."""

    def differentiate(self, root: Any) -> None:
        """Nor does what is differentiated."""

    def finish(self) -> None:
        """Nothing to close."""

    def durations(self) -> list[int]:
        """Nanoseconds of each operator called, in order."""
        return self._clock.durations(self._marks)
