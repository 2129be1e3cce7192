"""The tasks of one round, as algorithm 1 needs them. Tasks are numbered from 0 within their round."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from simgpu.errors import InputError
from simgpu.graph.taskgraph import BEFORE, Round, TaskGraph
from simgpu.graph.transforms import algorithm_choices
from simgpu.hardware.spec import LinkSpec
from simgpu.memory.pool import aligned
from simgpu.memory.transfer import copy_ns
from simgpu.trace.model import AlgorithmChoice, BlockKind, Phase

#: Name of the algorithm of a kernel that runs as it was recorded.
AS_RECORDED = ""


@dataclass(frozen=True, slots=True)
class Task:
    """One kernel.

    inputs: data blocks that exist before it and that it touches; outputs: data blocks that it creates; host_written:
    the outputs that the host writes; saved: outputs without a use before the other pass. dying: data blocks without a
    later use. writes: data blocks that it changes. choices: its convolution algorithms from fastest to slowest; without
    any it runs as recorded. If the trace does not list the recorded algorithm, it is among them without a name.
    """

    kernel: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    host_written: tuple[int, ...]
    dying: tuple[int, ...]
    writes: tuple[int, ...]
    saved: tuple[int, ...]
    choices: tuple[AlgorithmChoice, ...]

    @property
    def touched(self) -> tuple[int, ...]:
        """Inputs and outputs."""
        return self.inputs + self.outputs


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks of a round in order.

    host_inputs: blocks on the host when the round begins (inputs, labels). uses[b]: tasks that touch b, ascending.
    sizes[b]: bytes of all blocks, with padding. out_ns[b], in_ns[b]: time to copy a data block on an idle link.
    fast: running sums of the durations with the fastest algorithms, from 0.
    """

    graph: TaskGraph
    tasks: tuple[Task, ...]
    host_inputs: tuple[int, ...]
    uses: dict[int, tuple[int, ...]]
    sizes: Sequence[int]
    out_ns: dict[int, int]
    in_ns: dict[int, int]
    fast: tuple[int, ...]

    def next_use(self, b: int, task: int) -> int | None:
        """The first task after this one that touches the block."""
        uses = self.uses[b]
        index = bisect_right(uses, task)
        return uses[index] if index < len(uses) else None


def resident_blocks(graph: TaskGraph) -> tuple[int, ...]:
    """Blocks that are never offloaded (section 3.2: weights and their gradients): persistent and never released."""
    releases = graph.needed_releases
    return tuple(b for b, birth in enumerate(graph.births) if birth == BEFORE and releases[b] is None)


def tasks_of(graph: TaskGraph, part: Round, link: LinkSpec, alignment: int) -> Tasks:
    """The tasks of one round of a split graph. Raises `InputError` for a block that outlives its round."""
    choices = {k: listed for k, listed in algorithm_choices(graph).items() if part.first <= k < part.stop}
    excluded = set(resident_blocks(graph)).union(*(workspaces_of(graph, k) for k in choices))
    uses: dict[int, list[int]] = {}
    for k in range(part.first, part.stop):
        for b in dict.fromkeys((*graph.reads[k], *graph.writes[k])):
            if b not in excluded:
                uses.setdefault(b, []).append(k - part.first)
    _check_lifetimes(graph, part, uses)
    sizes = [aligned(size, alignment) for size in graph.sizes]
    choices = {k: _with_recorded(graph, k, listed, sizes) for k, listed in choices.items()}
    tasks = tuple(_task(graph, part, k, uses, choices.get(k, ())) for k in range(part.first, part.stop))
    fastest = (task.choices[0].duration_ns if task.choices else graph.durations[task.kernel] for task in tasks)
    return Tasks(
        graph,
        tasks,
        tuple(sorted(b for b in uses if graph.births[b] == BEFORE)),
        {b: tuple(numbers) for b, numbers in uses.items()},
        sizes,
        {b: copy_ns(graph.copy_sizes[b], link.d2h_bandwidth, link.latency_ns) for b in uses},
        {b: copy_ns(graph.copy_sizes[b], link.h2d_bandwidth, link.latency_ns) for b in uses},
        (0, *accumulate(fastest)),
    )


def workspaces_of(graph: TaskGraph, k: int) -> tuple[int, ...]:
    """The workspaces of a kernel."""
    return tuple(b for b in graph.writes[k] if graph.blocks[b].kind is BlockKind.WORKSPACE)


def _with_recorded(
    graph: TaskGraph, k: int, listed: tuple[AlgorithmChoice, ...], sizes: Sequence[int]
) -> tuple[AlgorithmChoice, ...]:
    """The listed algorithms and, if it is not listed, the recorded one."""
    workspace = sum(sizes[b] for b in workspaces_of(graph, k))
    recorded = AlgorithmChoice(graph.kernels[k].id, AS_RECORDED, graph.durations[k], workspace)
    as_fast = [choice for choice in listed if choice.duration_ns == recorded.duration_ns]
    if any(choice.workspace_bytes == sum(graph.sizes[b] for b in workspaces_of(graph, k)) for choice in as_fast):
        return listed
    return tuple(sorted((*listed, recorded), key=lambda c: (c.duration_ns, c.workspace_bytes, c.algorithm)))


def _check_lifetimes(graph: TaskGraph, part: Round, used: Iterable[int]) -> None:
    for b in used:
        if not (part.first <= graph.uses[b][0] and graph.uses[b][-1] < part.stop):
            what = f"block '{graph.blocks[b].id}' is used in more than one sub-batch and does not stay in memory"
            raise InputError.single(graph.trace.name or graph.trace.info.model, "blocks", what, "mark it persistent")


def _task(
    graph: TaskGraph, part: Round, k: int, uses: Mapping[int, list[int]], choices: tuple[AlgorithmChoice, ...]
) -> Task:
    here = k - part.first
    touched = [b for b in dict.fromkeys((*graph.reads[k], *graph.writes[k])) if b in uses]
    outputs = tuple(b for b in touched if uses[b][0] == here and graph.births[b] != BEFORE)

    def phase_of(task: int) -> Phase:
        return graph.kernels[part.first + task].phase

    return Task(
        k,
        inputs=tuple(b for b in touched if b not in outputs),
        outputs=outputs,
        host_written=tuple(b for b in outputs if graph.blocks[b].host_write is not None),
        dying=tuple(b for b in touched if uses[b][-1] == here),
        writes=tuple(b for b in dict.fromkeys(graph.writes[k]) if b in uses),
        saved=tuple(b for b in outputs if len(uses[b]) > 1 and phase_of(uses[b][1]) is not graph.kernels[k].phase),
        choices=choices,
    )
