"""The trace as tasks: versions, uses, births and releases, gaps, dependencies, and the ideal time."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu.graph.taskgraph import BEFORE, Gap, TaskGraph
from simgpu.simulation.run import simulate
from simgpu.trace.model import RELEASED_AT_END, Phase, Trace
from tests.semantics.hand_made import block, graph, held, kernel, node
from tests.semantics.random_traces import traces

RESIDUAL = graph(
    [
        kernel("conv", 10, "x w", "y", op="conv2d"),
        kernel("relu_", 5, "y", "y", op="relu_"),
        kernel("add", 5, "x y", "z", op="add"),
        kernel("loss", 5, "z", "l", op="nll_loss"),
        kernel("add_b", 5, "l", "gz", phase=Phase.BACKWARD, op="add_backward"),
        kernel("relu_b", 5, "gz y", "gy", phase=Phase.BACKWARD, op="threshold_backward"),
        kernel("conv_b", 20, "gy x w", "gw", phase=Phase.BACKWARD, op="convolution_backward"),
        kernel("sgd", 5, "gw w", "w", phase=Phase.OPTIMIZER, op="sgd"),
    ],
    [
        *(held("x", 9), held("w", 3), block("y", 7), block("z", 7), block("l", 1)),
        *(block("gz", 7), block("gy", 7), block("gw", 3, release=RELEASED_AT_END), held("t", 2, release="add")),
    ],
)
B, K = RESIDUAL.block, RESIDUAL.kernel


def versions(k: str) -> tuple[dict[str, int], dict[str, int]]:
    """Versions that a kernel reads and writes, by block."""
    tasks, at = RESIDUAL, K(k)
    names = [b.id for b in tasks.blocks]
    read = dict(zip((names[b] for b in tasks.reads[at]), tasks.read_versions[at], strict=True))
    return read, dict(zip((names[b] for b in tasks.writes[at]), tasks.write_versions[at], strict=True))


def test_a_block_resident_at_the_start_has_version_zero():
    assert versions("conv")[0] == {"x": 0, "w": 0}


def test_a_change_in_place_reads_one_version_and_writes_the_next():
    assert versions("relu_") == ({"y": 1}, {"y": 2})


def test_later_readers_see_the_last_version_written():
    assert versions("add")[0] == {"x": 0, "y": 2}
    assert versions("relu_b")[0]["y"] == 2


def test_the_last_version_counts_all_writes():
    assert [RESIDUAL.last_version[B(name)] for name in ("x", "y", "z", "w")] == [0, 2, 1, 1]


def test_each_kernel_that_touches_a_block_is_listed_once_in_its_uses():
    assert RESIDUAL.uses[B("y")] == (K("conv"), K("relu_"), K("add"), K("relu_b"))


# --- lifetimes ----------------------------------------------------------------------------------------------


def test_a_block_is_born_at_its_first_write_or_before_everything():
    assert [RESIDUAL.births[B(name)] for name in ("x", "y", "gw")] == [BEFORE, K("conv"), K("conv_b")]


def test_a_block_initialized_by_the_host_begins_at_its_recorded_time():
    tasks = graph([kernel("k0"), kernel("k1"), kernel("k2", 1, "s")], [block("s", 1, host_write="k1")])
    assert tasks.births == (1,)


def test_an_unused_block_from_the_host_is_released_at_its_initialization():
    tasks = graph([kernel("k0"), kernel("k1")], [block("s", 1, host_write="k1")])
    assert (tasks.births, tasks.recorded_releases, tasks.needed_releases) == ((1,), (1,), (1,))


def test_the_recorded_release_is_what_the_framework_did():
    tasks = graph(
        [kernel("k0", 1, "", "a b c d"), kernel("k1"), kernel("k2")],
        [block("a", 1, release="k1"), block("b", 1, release=RELEASED_AT_END), block("c", 1), held("d", 1)],
    )
    assert tasks.recorded_releases == (1, None, 0, None)
    assert tasks.needed_releases == (0, 0, 0, None)
    assert tasks.open_lifetimes[0] < tasks.open_lifetimes[1]


def test_without_recorded_releases_blocks_are_released_after_their_last_use():
    tasks = graph(
        [kernel("k0", 1, "", "a"), kernel("k1", 1, "a"), kernel("k2")], [block("a", 1), held("w", 1, release="k2")]
    )
    assert tasks.recorded_releases[0] == tasks.needed_releases[0] == 1
    assert tasks.open_lifetimes[0] == tasks.open_lifetimes[1] > 0


def test_a_released_persistent_block_is_needed_until_its_last_use():
    tasks = graph([kernel("k0", 1, "c"), kernel("k1"), kernel("k2")], [held("c", 1, release="k1")])
    assert (tasks.recorded_releases, tasks.needed_releases) == ((1,), (0,))


def test_gaps_lie_between_uses_with_a_kernel_in_between():
    assert list(RESIDUAL.gaps(B("y"))) == [Gap(B("y"), K("add"), K("relu_b"))]
    assert list(RESIDUAL.gaps(B("x"))) == [Gap(B("x"), 0, K("add")), Gap(B("x"), K("add"), K("conv_b"))]


def test_adjacent_uses_have_no_gap_between_them():
    assert list(RESIDUAL.gaps(B("z"))) == []


def test_the_next_use_is_strictly_later():
    assert [RESIDUAL.next_use(B("y"), k) for k in (-1, 0, 1, 2, 5)] == [0, 1, 2, 5, None]


# --- dependencies -------------------------------------------------------------------------------------------


def test_a_kernel_follows_the_writers_of_what_it_reads():
    assert RESIDUAL.predecessors[K("add")] == (K("relu_"),)


def test_a_kernel_follows_the_users_of_what_it_overwrites():
    assert RESIDUAL.predecessors[K("sgd")] == (K("conv"), K("conv_b"))


@given(traces(streams=3))
@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=40)
def test_a_writer_of_a_block_is_ordered_with_all_its_other_users(trace: Trace):
    tasks = TaskGraph.of(trace)
    after: list[set[int]] = []
    for before in tasks.predecessors:
        after.append(set(before).union(*(after[p] for p in before)))
    for late, k in enumerate(trace.kernels):
        for early, other in enumerate(trace.kernels[:late]):
            touched = {*k.writes} & {*other.reads, *other.writes} | {*k.reads} & {*other.writes}
            if touched:
                assert early in after[late]


def test_compute_streams_are_renumbered_from_0_in_order():
    message = graph([kernel("k0", stream=7), kernel("k1", stream=3), kernel("k2", stream=7)], [])
    assert (message.streams, message.compute_streams) == ((1, 0, 1), (0, 1))


def test_the_networkx_graph_has_the_same_edges_and_kernel_attributes():
    drawn = RESIDUAL.to_networkx()
    edges = {(RESIDUAL.kernels[p].id, RESIDUAL.kernels[k].id) for k, b in enumerate(RESIDUAL.predecessors) for p in b}
    assert set(drawn.edges) == edges
    assert drawn.nodes["conv"]["duration_ns"] == 10
    assert drawn.nodes["sgd"]["phase"] == "optimizer"


# --- ideal time ---------------------------------------------------------------------------------------------


def test_on_one_stream_the_ideal_time_is_the_sum_of_the_kernels():
    assert RESIDUAL.ideal_ns() == 60


def forked(*kernels: object) -> TaskGraph:
    return graph(kernels, [block(name, 1) for name in "abcde"])  # type: ignore[arg-type]


FORKS = {
    "independent": forked(kernel("k0", 10, "", "a b"), kernel("k1", 30, "", "c", stream=1), kernel("k2", 5, "", "d e")),
    "joined": forked(
        kernel("k0", 10, "", "a b"),
        kernel("k1", 30, "a", "c", stream=1),
        kernel("k2", 5, "b", "d"),
        kernel("k3", 1, "c d", "e"),
    ),
    "overwritten": forked(
        kernel("k0", 10, "", "a b"), kernel("k1", 30, "a", "c d", stream=1), kernel("k2", 5, "b", "a e")
    ),
    "read late elsewhere": forked(
        kernel("k0", 5, "", "a e"),
        kernel("slow", 100, "a", "b", stream=1),
        kernel("k1", 5, "a", "c"),
        kernel("k2", 50, "c", "d"),
    ),
}


@pytest.mark.parametrize(
    ("name", "expected"), [("independent", 30), ("joined", 41), ("overwritten", 45), ("read late elsewhere", 105)]
)
def test_on_several_streams_a_kernel_starts_when_its_stream_and_inputs_are_ready(name: str, expected: int):
    assert FORKS[name].ideal_ns() == expected


@pytest.mark.parametrize("name", FORKS)
def test_policy_ideal_takes_the_ideal_time_on_several_streams(name: str):
    """Releasing a block must not delay the stream that uses it last in the recording."""
    assert simulate(FORKS[name].trace, node(), "ideal").iteration_ns == FORKS[name].ideal_ns()


def test_a_value_from_the_host_may_be_read_on_another_stream():
    tasks = graph(
        [kernel("k0", 5, "", "a"), kernel("k1", 5, "s", "b", stream=1)],
        [block("s", 4, host_write="k0"), block("a", 1), block("b", 1)],
    )
    assert simulate(tasks.trace, node(), "ideal").iteration_ns in (5, 10)


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=40)
@given(st.data())
def test_the_ideal_time_is_between_the_longest_stream_and_the_sum(data: st.DataObject):
    tasks = TaskGraph.of(data.draw(traces(streams=3)))
    streams = [sum(d for d, s in zip(tasks.durations, tasks.streams, strict=True) if s == n) for n in range(3)]
    assert max(streams) <= tasks.ideal_ns() <= sum(streams)
