"""A program whose weights are on the host, and on the GPU only while a group of layers computes with them.

`weights_on_host` changes a program that was written for weights and an optimizer on the GPU. Compute itself copies the
weights of a group before the group begins in forward, and again before it begins in backward, and drops them when it
has ended. A stream of its own copies the gradients of a group when backward of the group has ended; the host updates
the weights when all gradients are there, and the next iteration begins when it has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from simgpu.errors import InputError
from simgpu.graph.host_updates import HostUpdates, UpdateOnHost, host_updates
from simgpu.graph.passes import passes_of
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import transformed
from simgpu.program.host_updates import OUT, UPDATES, HostUpdateWriter, check_leaves_updates
from simgpu.program.instructions import (
    COMPUTE,
    DEVICE,
    HOST,
    Acquire,
    Await,
    Copy,
    Instruction,
    Launch,
    Program,
    Release,
    Signal,
)
from simgpu.timeline.streams import StreamId
from simgpu.trace.model import Phase


def weights_on_host(
    program: Program,
    graph: TaskGraph,
    how: UpdateOnHost,
    group_of: Mapping[str, str],
    weights: Sequence[int],
    *,
    reshard_after_forward: bool,
) -> Program:
    """The program with these weights on the host.

    graph: the one the program was written for, without its transforms. how: the updates, of all weights that change.
    group_of: the group of each layer tag; all others are the root, whose weights stay from the first kernel to the last
    one of backward. weights: those that change and those that do not. Raises `InputError` as `updating_on_host` of
    `simgpu.program.host_updates` does, for micro-batches, and for an optimizer that also needs the GPU.
    """
    last = transformed(graph, program.transforms)
    parts = host_updates(last, how)
    check_leaves_updates(program, graph, parts)
    if len(program.segments) > 1 or program.segments[0].repeat > 1 or len(passes_of(last)) > 1:
        what = "its program has micro-batches, whose gradients the host would add up"
        raise InputError.single("", "parameters.inside", what, "choose a policy that does not divide the batch")
    if any(number is not None for number in parts.kernels[parts.end :]):
        what = "the optimizer has kernels for other weights, or for gradients that have left"
        raise InputError.single(graph.trace.name, "kernels.phase", what, "record or model it without gradient clipping")
    windows = _windows(program, last, parts, group_of, weights, reshard_after_forward)
    return _Writer(program, parts, weights, windows).program_with(how)


class _Windows:
    """Where weights come and go on the compute stream, by positions of launches. coming, going: weights before and
    after a launch. leaving: updates whose gradients leave after it."""

    def __init__(self) -> None:
        self.coming: defaultdict[int, list[int]] = defaultdict(list)
        self.going: defaultdict[int, list[int]] = defaultdict(list)
        self.leaving: defaultdict[int, list[int]] = defaultdict(list)


def _windows(
    program: Program,
    graph: TaskGraph,
    parts: HostUpdates,
    group_of: Mapping[str, str],
    weights: Sequence[int],
    reshard_after_forward: bool,
) -> _Windows:
    launches = [
        (position, each.kernel, each.recompute or graph.kernels[each.kernel].phase is Phase.BACKWARD)
        for position, each in enumerate(program.segments[0].streams[COMPUTE])
        if isinstance(each, Launch) and each.kernel < parts.end
    ]
    group = _groups(graph, group_of, weights, parts.end)
    spans: dict[tuple[str, bool], list[int]] = {}
    for position, k, is_backward in launches:
        names = {group_of.get(graph.layers.name_of(k), "")} | {group[b] for b in graph.reads[k] if b in group}
        for name in names - {""}:
            spans.setdefault((name, is_backward), []).append(position)
    whole = [launches[0][0], launches[-1][0]]
    windows = _Windows()
    for b in weights:
        name = group[b]
        each = [spans[name, backward] for backward in (False, True) if (name, backward) in spans] if name else [whole]
        if not reshard_after_forward:
            each = [[position for span in each for position in span]]
        for span in each:
            windows.coming[span[0]].append(b)
            windows.going[span[-1]].append(b)
    used = {k: position for position, k, _ in launches}
    for u, update in enumerate(parts.updates):
        ends = spans.get((group[update.weight], True), whole)[-1]
        ready = max(used[k] for k in graph.uses[update.gradient] if k < parts.end)
        windows.leaving[max(ends, ready)].append(u)
    return windows


def _groups(graph: TaskGraph, group_of: Mapping[str, str], weights: Collection[int], end: int) -> dict[int, str]:
    """The group of each weight; one that several groups use belongs to the root."""
    groups = {}
    for b in weights:
        names = {group_of.get(graph.layers.name_of(k), "") for k in graph.uses[b] if k < end}
        groups[b] = names.pop() if len(names) == 1 else ""
    return groups


class _Writer(HostUpdateWriter):
    def __init__(self, program: Program, parts: HostUpdates, weights: Sequence[int], windows: _Windows) -> None:
        super().__init__(program, parts, "gradients", free_gradients=True)
        self.weights, self.windows = weights, windows
        self.order = [u for position in sorted(windows.leaving) for u in windows.leaving[position]]

    def _resident(self) -> tuple[int, ...]:
        away = set(self.weights)
        return tuple(b for b in super()._resident() if b not in away)

    def _home(self) -> tuple[int, ...]:
        return (*self.weights, *(b for update in self.parts.updates for b in update.state))

    def _code(self, index: int, stream: StreamId, code: Sequence[Instruction]) -> Iterator[Instruction]:
        for position, instruction in enumerate(code):
            if stream != COMPUTE:
                yield from self._own(instruction)
                continue
            if coming := tuple(self.windows.coming.get(position, ())):
                yield Acquire(coming)
                yield from (Copy(b, HOST, DEVICE) for b in coming)
            yield from self._own(instruction)
            yield from (Signal(self._event("computed", u)) for u in self.windows.leaving.get(position, ()))
            if going := tuple(self.windows.going.get(position, ())):
                yield Release(going)

    def _of_updates(self, compute: list[Instruction]) -> dict[StreamId, list[Instruction]]:
        out = [instruction for u in self.order for instruction in self._send(u)]
        updates = [instruction for u in self.order for instruction in self._update(u, together=True)]
        updates = [Await(self._event("sent", self.order[-1])), *updates, Signal(self._event("back"))]
        return {OUT: out, UPDATES: updates}
