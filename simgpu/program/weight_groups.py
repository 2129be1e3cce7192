"""Groups of weights that are on the GPU only while layers compute with them, and where on the compute stream that is.

Policies whose weights come and go (`simgpu.program.host_weights`, `simgpu.program.fully_sharded`) share it: a group is
what FSDP2's `fully_shard` wraps, in forward and again in backward, with what a checkpoint runs again there; all other
layers are the root group, whose weights stay from the first kernel to the last one of backward.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from simgpu.errors import InputError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.program.instructions import COMPUTE, Acquire, Initialize, Instruction, Launch, Program, Release
from simgpu.trace.model import Phase

#: The name of the root group.
ROOT = ""


def require_one_segment(program: Program, why: str) -> None:
    """Raises `InputError` for micro-batches that a policy has divided the batch into. why: what is unsupported."""
    if len(program.segments) > 1 or program.segments[0].repeat > 1:
        what = f"the program of the policy inside is for micro-batches that it makes of the batch, {why}"
        remedy = (
            "choose a policy that does not divide the batch, such as vdnn or checkpoint; "
            "to accumulate gradients, record or model the iteration in micro-batches"
        )
        raise InputError.single("", "parameters.inside", what, remedy)


@dataclass(frozen=True)
class WeightGroups:
    """Where groups compute, by positions in the code of the compute stream.

    of_weight: the group of each weight; one that several groups use belongs to the root. spans: the launches of a
    group in forward (False), and in backward with what runs again there (True). whole: the first launch and the last
    one before the optimizer. launched: where each of these kernels runs last. forward_end: the last launch of forward;
    what runs again in front of it is of forward too.
    """

    code: tuple[Instruction, ...]
    of_weight: Mapping[int, str]
    spans: Mapping[tuple[str, bool], Sequence[int]]
    whole: tuple[int, int]
    launched: Mapping[int, int]
    forward_end: int

    @classmethod
    def of(
        cls, program: Program, graph: TaskGraph, group_of: Mapping[str, str], weights: Sequence[int], kernels: range
    ) -> WeightGroups:
        """graph: with the program's transforms. group_of: the group of each layer tag; all others are the root's.
        kernels: of one pass, without the optimizer's."""
        code = tuple(program.segments[0].streams[COMPUTE])
        ran = [
            (position, each.kernel, each.recompute, graph.kernels[each.kernel].phase)
            for position, each in enumerate(code)
            if isinstance(each, Launch) and each.kernel in kernels
        ]
        forward = (position for position, _, again, phase in ran if phase is Phase.FORWARD and not again)
        end = max(forward, default=-1)
        launches = [
            (position, k, phase is Phase.BACKWARD or (again and position > end)) for position, k, again, phase in ran
        ]
        group = _groups(graph, group_of, weights, kernels)
        spans: dict[tuple[str, bool], list[int]] = {}
        launched: dict[int, int] = {}
        for position, k, is_backward in launches:
            launched[k] = position
            names = {group_of.get(graph.layers.name_of(k), ROOT)} | {group[b] for b in graph.reads[k] if b in group}
            for name in names - {ROOT}:
                spans.setdefault((name, is_backward), []).append(position)
        return cls(code, group, spans, (launches[0][0], launches[-1][0]), launched, end)

    def windows(self, name: str, *, leave_between: bool) -> list[tuple[int, int]]:
        """The first and the last launch of each time that a group's weights are there.

        leave_between: whether they leave between forward and backward.
        """
        if name == ROOT:
            return [self.whole]
        each = [self.spans[name, backward] for backward in (False, True) if (name, backward) in self.spans]
        if not leave_between:
            each = [[position for span in each for position in span]]
        return [(span[0], span[-1]) for span in each]

    def end_of_backward(self, name: str, gradients: Collection[int], graph: TaskGraph) -> int:
        """The last launch of a group's backward, or that uses one of these gradients before the optimizer."""
        ready = (self.last_use(b, graph)[0] for b in gradients)
        return max(self.spans.get((name, True), self.whole)[-1], *ready)

    def last_use(self, b: int, graph: TaskGraph) -> tuple[int, int]:
        """The last launch before the optimizer that uses a block, and its kernel."""
        return max((self.launched[k], k) for k in graph.uses[b] if k in self.launched)

    def before(self, launch: int) -> int:
        """Where the memory for a launch is acquired."""
        preceding = range(launch - 1, -1, -1)
        return next((p for p in preceding if not isinstance(self.code[p], Acquire | Initialize)), -1) + 1

    def after(self, launch: int) -> int:
        """The last release behind a launch."""
        following = range(launch + 1, len(self.code))
        return next((p for p in following if not isinstance(self.code[p], Release)), len(self.code)) - 1


def _groups(graph: TaskGraph, group_of: Mapping[str, str], weights: Collection[int], kernels: range) -> dict[int, str]:
    """The group of each weight; one that several groups use belongs to the root."""
    groups = {}
    for b in weights:
        names = {group_of.get(graph.layers.name_of(k), ROOT) for k in graph.uses[b] if k in kernels}
        groups[b] = names.pop() if len(names) == 1 else ROOT
    return groups
