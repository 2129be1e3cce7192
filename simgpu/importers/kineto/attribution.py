"""Determines the operator that launched each kernel of an iteration, and the kernel's phase and layer.

- A kernel and the call that launched it have the same correlation id. The operator is the innermost one around that
  call on its thread; if the call was not recorded, the operator with the kernel's External id; else there is none.
- Phase: optimizer inside an Optimizer.step or Optimizer.zero_grad annotation; backward inside an autograd node, which
  is an operator of autograd's engine or the counterpart of a forward operator; forward inside any other operator. A
  kernel without an operator has no recorded phase; it counts as forward, and the notes report it.
- Layer: the innermost nn.Module around the call. A backward kernel has the layer of the forward operator with the same
  sequence number as its autograd node: the last one with that number, because that one created the node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Protocol

from simgpu.importers.kineto.iteration import Iteration, launched_at
from simgpu.importers.kineto.profile import Op, Profile, Thread
from simgpu.importers.pytorch_operators import innermost_purity, is_autograd_node, is_optimizer
from simgpu.trace.model import Phase


@dataclass(frozen=True, slots=True)
class Launched:
    """A kernel with its attributes in the trace.

    op: position of the operator that launched it, among the iteration's operators; -1 if there is none.
    at: when it was launched, ns.
    """

    op: int
    name: str
    at: int
    phase: Phase
    is_phase_recorded: bool
    layer: str | None
    pure: bool | None


class Attribution:
    """The operators of an iteration, and the kernels they launched in the order they ran."""

    def __init__(self, profile: Profile, iteration: Iteration) -> None:
        self.profile = profile
        self.iteration = iteration
        self.ops: list[Op] = [op for op in profile.ops if iteration.contains(op.start)]
        self.parent = parents(self.ops)

    @cached_property
    def launched(self) -> tuple[Launched, ...]:
        """The attributes of each kernel of the iteration."""
        kernels, launches = self.iteration.kernels, self.profile.launches
        unknown: tuple[Thread, int] = ((None, None), 0)
        calls = [launches.get(kernel.correlation, unknown) for kernel in kernels]
        around = innermost(self.ops, calls)
        by_external = {op.external: position for position, op in enumerate(self.ops) if op.external}
        modules = innermost(self.profile.modules, calls)
        layer_of_sequence = self._layers_of_sequences()
        result = []
        for position, kernel in enumerate(kernels):
            op = around[position]
            if kernel.correlation not in launches:
                op = by_external.get(kernel.external, -1)
            op = next(self.operators(op), -1)
            phase = self._phase(around[position] if op < 0 else op)
            layer = self.profile.modules[modules[position]].name if modules[position] >= 0 else None
            if phase is Phase.BACKWARD:
                layer = next((layer_of_sequence[n] for n in self._sequences(op) if n in layer_of_sequence), layer)
            name = self.ops[op].name if op >= 0 else kernel.name
            pure = False if phase is Phase.OPTIMIZER else innermost_purity(self.ops[p].name for p in self.chain(op))
            at = launched_at(kernel, self.profile)
            result.append(Launched(op, name, at, phase or Phase.FORWARD, phase is not None, layer, pure))
        return tuple(result)

    @cached_property
    def launched_by(self) -> dict[int, list[int]]:
        """Positions of the kernels that each operator launched directly, by operator position."""
        result: dict[int, list[int]] = {}
        for position, launched in enumerate(self.launched):
            result.setdefault(launched.op, []).append(position)
        return result

    @cached_property
    def launch_order(self) -> list[int]:
        """Positions of the kernels in the order they were launched."""
        return sorted(range(len(self.launched)), key=lambda position: (self.launched[position].at, position))

    def chain(self, op: int) -> Iterator[int]:
        """Yields an operator and the operators around it, innermost first."""
        while op >= 0:
            yield op
            op = self.parent[op]

    def operators(self, op: int) -> Iterator[int]:
        """Like `chain`, but stops at the first annotation."""
        return takewhile(lambda p: not self.ops[p].is_annotation, self.chain(op))

    def samples(self) -> int | None:
        """Samples per iteration: the first dimension of the first operator's data; None if unknown."""
        ordered = sorted(self.ops, key=lambda op: op.start)
        return next((op.samples for op in ordered if op.samples is not None), None)

    def _phase(self, op: int) -> Phase | None:
        chain = [self.ops[p] for p in self.chain(op)]
        if any(is_optimizer(around.name) for around in chain):
            return Phase.OPTIMIZER
        if any(around.is_backward or is_autograd_node(around.name) for around in chain):
            return Phase.BACKWARD
        return None if all(around.is_annotation for around in chain) else Phase.FORWARD

    def _sequences(self, op: int) -> Iterator[int]:
        return (self.ops[p].sequence for p in self.chain(op) if self.ops[p].sequence >= 0)

    def _layers_of_sequences(self) -> dict[int, str]:
        forward = [op for op in self.ops if op.sequence >= 0 and not op.is_backward]
        forward.sort(key=lambda op: op.start)
        modules = innermost(self.profile.modules, [(op.thread, op.start) for op in forward])
        pairs = zip(forward, modules, strict=True)
        return {op.sequence: self.profile.modules[module].name for op, module in pairs if module >= 0}


class Interval(Protocol):
    """A time interval of a thread, in ns."""

    @property
    def thread(self) -> Thread: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


def parents(intervals: Sequence[Interval]) -> list[int]:
    """For each interval, the position of the innermost interval around it; -1 if there is none.

    >>> from simgpu.importers.kineto.profile import Span
    >>> parents([Span((1, 1), 0, 9, "outer"), Span((1, 1), 2, 4, "inner"), Span((1, 2), 2, 4, "other")])
    [-1, 0, -1]
    """
    result = [-1] * len(intervals)
    for order in _by_thread(intervals).values():
        stack: list[int] = []
        for position in order:
            _close(stack, intervals, intervals[position].start, intervals[position].end)
            result[position] = stack[-1] if stack else -1
            stack.append(position)
    return result


def innermost(intervals: Sequence[Interval], moments: Sequence[tuple[Thread, int]]) -> list[int]:
    """For each moment (thread, ns), the position of the innermost interval around it; -1 if there is none.

    If one interval ends and the next begins at a moment, the moment belongs to the next.

    >>> from simgpu.importers.kineto.profile import Span
    >>> innermost([Span((1, 1), 0, 4, "a"), Span((1, 1), 4, 9, "b")], [((1, 1), 4), ((1, 1), 2), ((1, 1), 10)])
    [1, 0, -1]
    """
    result = [-1] * len(moments)
    by_thread: dict[Thread, list[int]] = defaultdict(list)
    for position, (thread, _) in enumerate(moments):
        by_thread[thread].append(position)
    ordered = _by_thread(intervals)
    for thread, positions in by_thread.items():
        order, opened, stack = ordered.get(thread, []), 0, list[int]()
        for moment in sorted(positions, key=lambda position: moments[position][1]):
            at = moments[moment][1]
            while opened < len(order) and intervals[order[opened]].start <= at:
                interval = intervals[order[opened]]
                _close(stack, intervals, interval.start, interval.end)
                stack.append(order[opened])
                opened += 1
            while stack and intervals[stack[-1]].end < at:
                stack.pop()
            result[moment] = stack[-1] if stack else -1
    return result


def _by_thread(intervals: Sequence[Interval]) -> dict[Thread, list[int]]:
    """Positions by thread, ordered by start; at the same start, the longest interval first."""
    result: dict[Thread, list[int]] = defaultdict(list)
    for position, interval in enumerate(intervals):
        result[interval.thread].append(position)
    for order in result.values():
        order.sort(key=lambda position: (intervals[position].start, -intervals[position].end))
    return result


def _close(stack: list[int], intervals: Sequence[Interval], start: int, end: int) -> None:
    """Remove intervals from the stack that have ended when the interval from `start` to `end` begins."""
    while stack:
        top = intervals[stack[-1]].end
        if top > start or (top == start and end <= start):
            return
        stack.pop()
