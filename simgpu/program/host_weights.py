"""A program whose weights are on the host, and on the GPU only while a group of layers computes with them.

`weights_on_host` changes a program that was written for weights and an optimizer on the GPU. Compute waits for copies
of a group's weights before the group begins in forward, and again before it begins in backward, and drops them when it
has ended. Each arrives in a staging buffer of its size, which is dropped when the next weight's is there.

A stream of its own copies the gradients of a group when backward of the group has ended. A buffer as large as all of
them exists from there to the end of the next group, where compute waits until the gradients of the last group but one
have left. The host updates the weights when all gradients are there, and the next iteration begins when it has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from simgpu.errors import InputError
from simgpu.graph.buffers import WithBuffers
from simgpu.graph.host_updates import HostUpdates, UpdateOnHost, host_updates
from simgpu.graph.passes import passes_of
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import transformed
from simgpu.program.host_updates import BACK, OUT, UPDATES, HostUpdateWriter, check_leaves_updates
from simgpu.program.instructions import (
    COMPUTE,
    DEVICE,
    HOST,
    Acquire,
    Await,
    Copy,
    Instruction,
    Program,
    Release,
    Signal,
)
from simgpu.program.weight_groups import WeightGroups
from simgpu.timeline.streams import StreamId


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
    groups = WeightGroups.of(program, last, group_of, weights, range(parts.end))
    return _Writer(program, parts, weights, _windows(groups, parts, reshard_after_forward)).program_with(how)


class _Windows:
    """Where weights come and go on the compute stream, by positions in its code. coming: weights that are copied before
    an instruction, which is the first that acquires results of a launch. going: weights that are dropped after a
    launch. leaving: updates whose gradients leave after an instruction, when memory that the launch used is released.
    """

    def __init__(self) -> None:
        self.coming: defaultdict[int, list[int]] = defaultdict(list)
        self.going: defaultdict[int, list[int]] = defaultdict(list)
        self.leaving: defaultdict[int, list[int]] = defaultdict(list)


def _windows(groups: WeightGroups, parts: HostUpdates, reshard_after_forward: bool) -> _Windows:
    windows = _Windows()
    for b, name in groups.of_weight.items():
        for first, last in groups.windows(name, leave_between=reshard_after_forward):
            windows.coming[groups.before(first)].append(b)
            windows.going[last].append(b)
    for u, update in enumerate(parts.updates):
        ends = groups.end_of_backward(groups.of_weight[update.weight], (update.gradient,), parts.graph)
        windows.leaving[groups.after(ends)].append(u)
    return windows


class _Writer(HostUpdateWriter):
    """Writes the program. groups: the updates of each group, in order of backward. staging, inputs: the buffers of each
    weight and of each group's gradients."""

    def __init__(self, program: Program, parts: HostUpdates, weights: Sequence[int], windows: _Windows) -> None:
        super().__init__(program, parts, "gradients", free_gradients=True)
        self.weights, self.windows = weights, windows
        self.groups = [windows.leaving[position] for position in sorted(windows.leaving)]
        self.number = {position: n for n, position in enumerate(sorted(windows.leaving))}
        self.order = [u for group in self.groups for u in group]
        self.fetches: list[Instruction] = []
        first = len(parts.graph.blocks)
        self.staging = {b: first + n for n, b in enumerate(weights)}
        self.inputs = [first + len(weights) + n for n in range(len(self.groups))]

    def program_with(self, how: UpdateOnHost) -> Program:
        """The changed program, with its buffers."""
        graph = self.parts.graph
        staging = ((f"{graph.blocks[b].id}:staging", graph.sizes[b]) for b in self.weights)
        gradients = [[self.parts.updates[u].gradient for u in group] for group in self.groups]
        inputs = ((f"gradients:group{n}", sum(graph.sizes[b] for b in each)) for n, each in enumerate(gradients, 1))
        changed = super().program_with(how)
        return replace(changed, transforms=(*changed.transforms, WithBuffers((*staging, *inputs))))

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
            yield from self._fetch_weights(position)
            yield from self._own(instruction)
            if going := tuple(self.windows.going.get(position, ())):
                yield Release(going)
            if position in self.number:
                yield from self._leave(self.number[position])

    def _fetch_weights(self, position: int) -> Iterator[Instruction]:
        """Compute waits for each copy."""
        coming = self.windows.coming.get(position, [])
        for before, b in zip((None, *coming), coming, strict=False):
            yield Acquire((self.staging[b],))
            if before is not None:
                yield Release((self.staging[before],))
            yield Acquire((b,))
            begins, ended = (self._event(name, position, b) for name in ("fetch", "fetched"))
            yield Signal(begins)
            self.fetches += (Await(begins), Copy(b, HOST, DEVICE), Signal(ended))
            yield Await(ended)
        if coming:
            yield Release((self.staging[coming[-1]],))

    def _leave(self, n: int) -> Iterator[Instruction]:
        """Backward of a group has ended."""
        yield from self._drop_input(n - 1)
        yield Acquire((self.inputs[n],))
        yield from (Signal(self._event("computed", u)) for u in self.groups[n])
        if n == len(self.groups) - 1:
            yield from self._drop_input(n)

    def _drop_input(self, n: int) -> Iterator[Instruction]:
        """The buffer of a group's gradients is read when those of the group before it have left."""
        if n > 0:
            yield Await(self._event("sent", self.groups[n - 1][-1]))
        if n >= 0:
            yield Release((self.inputs[n],))

    def _of_updates(self, compute: list[Instruction]) -> dict[StreamId, list[Instruction]]:
        out = [instruction for u in self.order for instruction in self._send(u)]
        updates = [instruction for u in self.order for instruction in self._update(u, together=True)]
        updates = [Await(self._event("sent", self.order[-1])), *updates, Signal(self._event("back"))]
        return {OUT: out, BACK: self.fetches, UPDATES: updates}
