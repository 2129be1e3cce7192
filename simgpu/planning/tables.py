"""A graph on a node as arrays of numbers, with all inputs of a placement's cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simgpu.graph.recompute import Ancestry
from simgpu.graph.taskgraph import BEFORE, TaskGraph
from simgpu.hardware.spec import Duplex, NodeSpec
from simgpu.memory.pool import aligned
from simgpu.memory.transfer import copy_ns, sending_rate
from simgpu.planning.columns import (
    ACQUIRES,
    ACTION,
    AHEAD,
    BYTES,
    CHARGED,
    DEATH,
    DECODE_NS,
    DURATION,
    EARLY,
    ENCODED,
    FETCH,
    FIRST,
    INPUTS,
    ISSUE,
    LAST_USED,
    MAP,
    OF,
    OUTPUTS,
    RANK,
    RELAUNCH,
    RELEASES,
    STACK_INPUT,
    STAMP,
    STEP,
    WATCH,
    WRITERS,
)
from simgpu.planning.options import Action, Decisions, Option, fetch_kernel
from simgpu.trace.model import Phase

Ints = NDArray[np.int64]
Positions = NDArray[np.uint32]

#: Vectors of decisions, one a row.
Vectors = NDArray[np.int8]

#: "Never", as the position of a kernel.
NEVER = np.iinfo(np.int64).max


class Tables(NamedTuple):
    """Arrays with the columns of `simgpu.planning.columns`.

    lists: positions; unsigned, so that compiled code needs no check for negative indices. step_first: the first kernel
    of each layer step. limits: bytes that are always resident, bytes that the host initializes at the begin of an
    iteration, the budget, and whether a fetch that must wait for its block waits for all copies.
    """

    kernels: Ints
    blocks: Ints
    maps: Ints
    options: Ints
    lists: Positions
    step_first: Ints
    limits: Ints


class Scratch(NamedTuple):
    """One thread's work arrays for evaluating vectors, with the columns of `simgpu.planning.columns`."""

    states: Ints
    pending: Ints
    relaunches: Ints
    recomputing: Ints
    line: Ints
    now: Ints


def scratch_for(t: Tables, relaunches: int) -> Scratch:
    """Work arrays for these tables. relaunches: an upper bound of the relaunches of a placement."""

    def zeros(rows: int, columns: int) -> Ints:
        return np.zeros((max(rows, 1), columns), np.int64)

    maps, kernels, blocks = len(t.maps), len(t.kernels), len(t.blocks)
    pending = zeros(kernels, RELAUNCH + 1)
    pending[:, FIRST] = -1
    return Scratch(
        states=zeros(maps, FETCH + 1),
        pending=pending,
        relaunches=zeros(relaunches, CHARGED + 1),
        recomputing=zeros(blocks, STACK_INPUT + 1),
        line=zeros(maps, OF + 1),
        now=zeros(1, STAMP + 1)[0],
    )


def tables_of(
    graph: TaskGraph, node: NodeSpec, budget: int, decisions: Decisions, *, early: bool = True, drain: bool = False
) -> Tables:
    """The tables of a graph.

    early: offloads are issued with the last reader, else after it. drain: a fetch that must wait for its block waits
    for all copies.
    """
    unit = node.gpu.alignment
    sizes = [aligned(size, unit) for size in graph.sizes]
    maps, count = decisions.maps, len(graph.kernels)
    map_of = {each.block: f for f, each in enumerate(maps)}
    acquired, released, resident, host_inputs = _lifetimes(graph, sizes)
    ancestry = Ancestry.of(graph)
    forward = [kernel.phase is Phase.FORWARD for kernel in graph.kernels]
    order = sorted(range(len(maps)), key=lambda f: (maps[f].before, maps[f].after, maps[f].block))
    by_after: defaultdict[int, list[int]] = defaultdict(list)
    by_issue: defaultdict[int, list[int]] = defaultdict(list)
    for f in order:
        by_after[maps[f].after].append(f)
        by_issue[-1 if (issued := maps[f].out_with) is None else issued].append(f)
    watch = _watch(graph, map_of, [each.after for each in maps])
    lists: list[int] = []
    kernels = np.zeros((count + 1, OUTPUTS + 1), np.int64)
    kernels[:count, DURATION], kernels[:count, STEP] = graph.durations, graph.layers.step_of
    kernels[:count, ACQUIRES], kernels[:count, RELEASES] = acquired, released
    kernels[:, LAST_USED] = _append(lists, [by_after[k] for k in range(count)])
    kernels[:, ISSUE] = _append(lists, [by_issue[k] for k in range(count)])
    kernels[:, WATCH] = _append(lists, [watch.get(k, ()) for k in range(count)])
    kernels[:, INPUTS] = _append(lists, [ancestry.inputs[k] if forward[k] else () for k in range(count)])
    kernels[:, OUTPUTS] = _append(lists, [ancestry.outputs[k] if forward[k] else () for k in range(count)])
    blocks = np.zeros((len(sizes) + 1, WRITERS + 1), np.int64)
    blocks[:-1, BYTES], blocks[:-1, MAP] = sizes, [map_of.get(b, -1) for b in range(len(sizes))]
    blocks[:-1, DEATH] = [NEVER if release is None else release for release in graph.needed_releases]
    blocks[:, WRITERS] = _append(lists, ancestry.writers)
    rank = {f: place for place, f in enumerate(order)}
    rows = [(each.block, sizes[each.block], each.after, each.before, rank[f]) for f, each in enumerate(maps)]
    return Tables(
        kernels=kernels,
        blocks=blocks,
        maps=np.array(rows, np.int64).reshape(len(maps), RANK + 1),
        options=_option_costs(graph, node, decisions, early=early),
        lists=np.array(lists, np.uint32),
        step_first=np.array([step.first for step in graph.layers.steps], np.int64),
        limits=np.array([resident, host_inputs, budget, drain], np.int64),
    )


def with_budget(tables: Tables, budget: int) -> Tables:
    """The tables of the same graph for another budget."""
    limits = tables.limits.copy()
    limits[2] = budget
    return tables._replace(limits=limits)


def why_not(graph: TaskGraph, node: NodeSpec, decisions: Decisions, *, launches: bool = True) -> str | None:
    """Why evaluation is not exact for a graph and node, None where it is. launches: whether to look at the host's.

    Launches that take time only delay kernels, so a lower bound holds with them too.
    """
    if launches and node.host.launch_ns:
        return "the host takes time to launch kernels"
    if len(graph.compute_streams) > 1:
        return "kernels run on several compute streams"
    if len(graph.rounds) != 1 or graph.rounds[0].repeat != 1:
        return "the batch is split"
    if node.gpu.copy_engines == 1:
        return "one copy engine serves both directions"
    if node.link.duplex is Duplex.HALF:
        return "both directions share the link"
    if node.gpu.cdma is not None and any(kernel.dram_bytes is not None for kernel in graph.kernels):
        return "how fast a copy is compressed depends on the kernels next to it"
    limit = node.host.pinned_memory
    pinned = sum(aligned(graph.copy_sizes[each.block], node.gpu.alignment) for each in decisions.maps)
    if limit is not None and pinned > limit:
        return "pinned host memory may run short"
    after = max((each.after for each in decisions.maps), default=-1)
    if any(each.before <= after for each in decisions.maps):
        return "some feature maps are used in backward before forward has ended"
    return None


def _lifetimes(graph: TaskGraph, sizes: Sequence[int]) -> tuple[list[int], list[int], int, int]:
    """Bytes acquired and released with each kernel, bytes always resident, and bytes that the host initializes."""
    acquired, released = [0] * len(graph.kernels), [0] * len(graph.kernels)
    resident = host_inputs = 0
    for b, (birth, release) in enumerate(zip(graph.births, graph.needed_releases, strict=True)):
        if birth is None:
            continue
        if birth == BEFORE:
            resident += sizes[b] if release is None else 0
            host_inputs += sizes[b] if release is not None else 0
        else:
            acquired[birth] += sizes[b]
        if release is not None:
            released[max(release, 0)] += sizes[b]
    return acquired, released, resident, host_inputs


def _watch(graph: TaskGraph, map_of: Mapping[int, int], after: Sequence[int]) -> dict[int, list[int]]:
    """The feature maps that each kernel uses after their last use in forward."""
    watching: dict[int, list[int]] = {}
    for k in range(len(graph.kernels)):
        touched = dict.fromkeys((*graph.reads[k], *graph.writes[k]))
        watched = [map_of[b] for b in touched if b in map_of and after[map_of[b]] < k]
        if watched:
            watching[k] = watched
    return watching


def _option_costs(graph: TaskGraph, node: NodeSpec, decisions: Decisions, *, early: bool) -> Ints:
    """The costs of each option of each feature map."""
    costs = np.zeros((len(decisions.maps), max(decisions.choices, default=1), EARLY + 1), np.int64)
    for f, (each, options) in enumerate(zip(decisions.maps, decisions.options, strict=True)):
        for o, option in enumerate(options):
            costs[f, o, ACTION] = int(option.action)
            if option.action is Action.SWAP:
                costs[f, o, ENCODED : DECODE_NS + 1] = _swap(graph, node, each.block, option)
                fetch = fetch_kernel(graph, each.after, each.before, option.ahead)
                costs[f, o, AHEAD] = graph.layers.step_of[each.before] - graph.layers.step_of[fetch]
                costs[f, o, EARLY] = early and option.encoding is None and each.out_with is not None
    return costs


def _swap(graph: TaskGraph, node: NodeSpec, b: int, option: Option) -> tuple[int, ...]:
    """The columns from ENCODED to DECODE_NS."""
    block, encode_ns, decode_ns = graph.blocks[b], 0, 0
    device, size, raw = graph.sizes[b], graph.copy_sizes[b], block.bytes
    if option.encoding is not None:
        assert graph.costs is not None, "encoded options need encoding costs"
        device = size = raw = graph.costs.encoded_bytes(block, option.encoding.codec)
        encode_ns = graph.costs.encode_ns(block, option.encoding)
        decode_ns = graph.costs.decode_ns(block, option.encoding)
    kernel_bandwidth = node.gpu.cdma.kernel_bandwidth if node.gpu.cdma is not None else 0
    out_ns, in_ns = (
        copy_ns(size, sending_rate(node.gpu, kernel_bandwidth, size, raw, rate), node.link.latency_ns)
        for rate in (node.link.d2h_bandwidth, node.link.h2d_bandwidth)
    )
    device_bytes = aligned(device, node.gpu.alignment)
    return int(option.encoding is not None), device_bytes, out_ns, in_ns, encode_ns, decode_ns


def _append(lists: list[int], more: Iterable[Sequence[int]]) -> list[int]:
    """Append lists; returns where each of them begins, and where the last one ends."""
    begins = []
    for each in more:
        begins.append(len(lists))
        lists += each
    return [*begins, len(lists)]
