"""moDNN's plans compared with the paper: its figures by hand, and its rules checked on random plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from simgpu.errors import ProgramError
from simgpu.graph.bounds import lower_bound
from simgpu.graph.split import split
from simgpu.graph.tdfg import Tdfg
from simgpu.hardware.spec import NodeSpec
from simgpu.policies.base import PlanContext
from simgpu.policies.modnn.policy import Modnn, Plan
from simgpu.program.instructions import COMPUTE, DATA, Acquire, Await, Instruction, Launch, Program, Release
from simgpu.program.verify import verify
from simgpu.simulation.run import simulate, task_graph
from simgpu.timeline.streams import StreamId
from simgpu.trace.model import AlgorithmChoice, BlockKind, Trace
from tests.papers.modnn_gains import gains, stand_before_choice
from tests.papers.modnn_plans import Round, rounds_of, walked
from tests.policies.address_overlap import never_overlap
from tests.semantics.hand_made import BACKWARD, GB, INFO, block, held, kernel, node, trace
from tests.semantics.random_traces import nodes

#: Trace, node, sub-batch and budget.
Case = tuple[Trace, NodeSpec, int, int]

few = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
many = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))


def plan_of(built: Trace, where: NodeSpec, budget: int, **parameters: object) -> Plan:
    context = PlanContext(task_graph(built, where), where, budget, None, np.random.default_rng(0))  # type: ignore[arg-type]
    return Modnn(**parameters).planned(context)  # type: ignore[arg-type]


@st.composite
def tight(draw: st.DrawFn) -> Case:
    """Layers with branches and joins, a node, a sub-batch of the five samples, and a budget just above the bound."""
    sizes = st.sampled_from([0, 5, 35, 60, 60, 100, 100, 150, 200])
    times = st.sampled_from([0, 1, 5, 20, 100, 400])
    count = draw(st.integers(2, 8))
    blocks = [held("x", draw(sizes), kind=BlockKind.INPUT), held("label", 5, kind=BlockKind.LABEL)]
    kernels, built, layers = [], ["x"], []
    for n in range(count):
        reads = draw(st.lists(st.sampled_from(built[-3:]), min_size=1, max_size=2, unique=True))
        in_place = n and draw(st.integers(0, 5)) == 0
        out = built[-1] if in_place else f"y{n}"
        if not in_place:
            blocks.append(block(out, draw(sizes)))
            built.append(out)
        kernels.append(kernel(f"F{n}", draw(times), " ".join(reads), out, op="conv2d"))
        layers.append((n, reads, out))
    begun: set[str] = set()
    for n, reads, out in reversed(layers):
        last = "label" if n == count - 1 else ""
        saved = [b for b in dict.fromkeys((*reads, out)) if b == out or draw(st.booleans())]
        writes = [f"g{b}" for b in reads]
        given_ = [g for g in dict.fromkeys((f"g{out}", *writes)) if g in begun]
        blocks += [block(g, draw(sizes) if g != "gx" else 0, kind=BlockKind.GRADIENT) for g in writes if g not in begun]
        begun.update(writes)
        kernels.append(
            kernel(
                f"B{n}", draw(times), " ".join((*saved, *given_, last)), " ".join(writes), phase=BACKWARD, op="conv2d"
            )
        )
    algorithms = [
        AlgorithmChoice(each.id, name, draw(times), draw(st.sampled_from([20, 60, 150])) if name != "gemm" else 0)
        for each in kernels
        for name in ("gemm", "winograd", "fft")[: draw(st.integers(0, 3))]
    ]
    network = replace(trace(kernels, blocks, algorithms=tuple(algorithms)), info=replace(INFO, batch=5))
    where = draw(nodes())
    sub_batch = draw(st.sampled_from([5, 5, 5, 2, 1]))
    bound = lower_bound(Tdfg.of(split(task_graph(network, where), sub_batch), where.gpu.alignment)).bytes
    return network, where, sub_batch, bound + draw(st.sampled_from([0, 0, 10, 35, 60, 100, 150, 250]))


def planned(case: Case) -> tuple[Plan, list[Round]]:
    network, where, sub_batch, budget = case
    plan = plan_of(network, where, budget, sub_batch=sub_batch)
    return plan, rounds_of(plan, task_graph(network, where), where, budget)


# --- any plan -----------------------------------------------------------------------------------------------


@many
@given(tight())
def test_a_plan_has_the_time_of_its_program_and_no_overlapping_blocks(case: Case) -> None:
    plan, parts = planned(case)
    total = 0
    for part, schedule in zip(map(walked, parts), plan.schedules, strict=True):
        assert part.clock[1] <= part.clock[0]
        assert [part.starts[k] for k in part.kernels] == schedule.starts
        assert [(c.block, c.src == "device", a, b) for c, a, b in part.copies] == [*map(tuple, schedule.transfers)]
        total += part.segment.repeat * part.clock[0]
        assert set(part.at) == part.stays
    assert total == plan.finish_ns
    network, where, sub_batch, budget = case
    result = simulate(network, where, "modnn", parameters={"sub_batch": sub_batch}, budget=budget)
    assert result.iteration_ns == total


@many
@given(tight())
def test_each_value_is_copied_out_once_and_host_inputs_never(case: Case) -> None:
    _, parts = planned(case)
    for part in map(walked, parts):
        graph, copied = part.graph, []
        for copy, start, _ in part.copies:
            if copy.src == "device":
                b = copy.block
                writers = [k for k in part.uses[b] if b in graph.writes[k]]
                written = sum(part.starts[k] + graph.durations[k] <= start for k in writers)
                assert written or graph.blocks[b].host_write is not None, "the host gave it"
                copied.append((b, written))
        assert len(copied) == len(set(copied))


@many
@given(tight())
def test_prefetches_follow_equation_9_and_stop_only_without_memory(case: Case) -> None:
    _, parts = planned(case)
    for part in parts:
        while (coming := part.next()) is not None:
            if isinstance(coming, Launch):
                k, duration = coming.kernel, part.graph.durations[coming.kernel]
                group: list[int] = []
                for b in part.prefetches():
                    if b in group:
                        continue
                    result = part.lacking(k)
                    assert result is not None
                    later, group = result
                    assert b in group, "another task needs something earlier"
                    assert part.due(k, later, group, duration), "equation 9"
                    assert part.will_fit(k, later), "of no use"
                result = part.lacking(k)
                if result is not None:
                    later, missing = result
                    if part.due(k, later, missing, duration) and part.will_fit(k, later):
                        between = range(part.kernels.index(k), part.kernels.index(later) + 1)
                        needed = {b for at in between for b in part.data[part.kernels[at]]}
                        held_back = [
                            b
                            for b in (*missing, *group)
                            if b not in part.at
                            and not part.has_hole(part.size(b))
                            and not part.schemes(part.size(b), needed)
                        ]
                        assert held_back, "there was room for a prefetch that was due"
            part.step(0)


def during_a_copy(gemm: int) -> Trace:
    """A convolution next to 30 bytes that are still being copied out for 30 ns when it could begin.

    Before it, with a budget of 40 bytes, the label takes the address of `y`, and `y` then that of `large`.
    """
    return trace(
        [
            kernel("t", 10, "", "y"),
            kernel("u", 10, "", "large"),
            kernel("v", 10),
            kernel("conv", gemm, "label", "made", phase=BACKWARD, op="conv2d"),
            kernel("s", 10, "y", phase=BACKWARD),
            kernel("last", 10, "large", phase=BACKWARD),
        ],
        [
            held("label", 5, kind=BlockKind.LABEL),
            block("y", 5),
            block("large", 35),
            block("made", 0, kind=BlockKind.GRADIENT),
        ],
        algorithms=(AlgorithmChoice("conv", "gemm", gemm, 0), AlgorithmChoice("conv", "winograd", 0, 20)),
    )


def cleared_for_a_workspace() -> Trace:
    """A convolution whose workspace, with a budget of 95 bytes, evicts everything after it was prepared."""
    return trace(
        [
            kernel("t", 0, "", "y"),
            kernel("u", 0, "label", "g", phase=BACKWARD),
            kernel("conv", 0, "", "made", phase=BACKWARD, op="conv2d"),
            kernel("s", 0, "g", phase=BACKWARD),
            kernel("last", 0, "y", phase=BACKWARD),
        ],
        [
            held("label", 5, kind=BlockKind.LABEL),
            block("y", 35),
            block("g", 60, kind=BlockKind.GRADIENT),
            block("made", 0, kind=BlockKind.GRADIENT),
        ],
        algorithms=(AlgorithmChoice("conv", "gemm", 0, 0), AlgorithmChoice("conv", "winograd", 0, 60)),
    )


@pytest.mark.parametrize(("gemm", "chosen", "begins"), [(30, "gemm", 30), (31, "winograd", 60)])
def test_a_workspace_waits_for_the_offload_of_the_block_at_its_address(gemm: int, chosen: str, begins: int) -> None:
    built = during_a_copy(gemm)
    assert [*plan_of(built, node(), 40).schedules[0].chosen.values()] == [chosen]
    starts, copies = times(built, 40)
    assert copies["out:large"] == (25, 60)
    assert (starts["v"], starts["conv"]) == (20, begins)


@many
@example((during_a_copy(30), node(), 1, 40))
@example((cleared_for_a_workspace(), node(back=GB // 10), 1, 95))
@given(tight())
def test_algorithms_are_chosen_by_equation_10(case: Case) -> None:
    plan, parts = planned(case)
    chosen = dict(plan.program.transforms[1].chosen)  # type: ignore[attr-defined]
    for part in parts:
        for k in part.kernels:
            if part.ways[k]:
                stand_before_choice(part, k)
                result = gains(part, k)
                assert chosen.get(k, "") == min(result, key=lambda way: (-result[way], way[1], way[2]))[2]
            while part.next() != Launch(k):
                part.step(0)
            for _ in part.prefetches():
                pass
            part.step(0)


def without(program: Program, segment: int, stream: StreamId, position: int) -> Program:
    """The program without one instruction."""
    code = program.segments[segment].streams[stream]
    streams = {**program.segments[segment].streams, stream: (*code[:position], *code[position + 1 :])}
    changed = replace(program.segments[segment], streams=streams)
    return replace(program, segments=(*program.segments[:segment], changed, *program.segments[segment + 1 :]))


def is_needed(case: Case, plan: Plan, segment: int, stream: StreamId, position: int) -> bool:
    """Whether a program without one Await is illegal or may place a block on another one."""
    network, where, _, budget = case
    less, graph = without(plan.program, segment, stream, position), task_graph(network, where)
    try:
        verify(less, graph, capacity=budget, alignment=where.gpu.alignment)
    except ProgramError:
        return True
    return not never_overlap(rounds_of(replace(plan, program=less), graph, where, budget)[segment])


def waits_again(code: Sequence[Instruction], position: int) -> bool:
    """Whether a stream waits again before its next kernel."""
    kinds = [type(each) for each in code[position + 1 :]]
    return Await in kinds and (Launch not in kinds or kinds.index(Await) < kinds.index(Launch))


@few
@given(tight())
def test_every_wait_between_streams_is_needed(case: Case) -> None:
    plan, parts = planned(case)
    for segment, part in enumerate(parts):
        assert never_overlap(part)
        for stream, code in part.segment.streams.items():
            for position, each in enumerate(code):
                if isinstance(each, Await) and not is_needed(case, plan, segment, stream, position):
                    after = code[position + 1]
                    begins_at_a_task = stream == DATA and isinstance(after, Acquire | Release)
                    assert begins_at_a_task or (stream == COMPUTE and waits_again(code, position))


# --- the figures, a byte a nanosecond -------------------------------------------------------------------------


def times(built: Trace, budget: int) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
    """Start of each kernel, and start and end of each copy in order, of a plan for a trace."""
    where = node()
    (part,) = rounds_of(plan_of(built, where, budget), task_graph(built, where), where, budget)
    walked(part)
    names = part.graph.kernels
    copies: dict[str, tuple[int, int]] = {}
    for copy, start, end in part.copies:
        name = "out:" if (copy.src == "device") else "in:"
        copies.setdefault(name + part.graph.blocks[copy.block].id, (start, end))
    return {names[k].id: start for k, start in part.starts.items()}, copies


@pytest.mark.parametrize(("between", "begins"), [(20, 50), (60, 70)])
def test_figure_3_a_task_waits_only_for_an_unfinished_offload(between: int, begins: int) -> None:
    built = trace(
        [
            kernel("t", 10, "", "y"),
            kernel("between", between, "y"),
            kernel("s", 10, "", "large"),
            kernel("last", 10, "y", phase=BACKWARD),
        ],
        [block("y", 40), block("large", 60)],
    )
    starts, copies = times(built, 80)
    assert starts == {"t": 0, "between": 10, "s": begins, "last": begins + 50}
    assert copies == {"out:y": (10, 50), "in:y": (begins + 10, begins + 50)}


def test_figure_5_a_block_used_by_the_next_task_is_not_evicted() -> None:
    built = trace(
        [
            kernel("t", 10, "", "next far"),
            kernel("both", 10, "next far"),
            kernel("s", 10, "next", "large"),
            kernel("last", 10, "far", phase=BACKWARD),
        ],
        [block("next", 30), block("far", 30), block("large", 30)],
    )
    starts, copies = times(built, 60)
    assert copies == {"out:far": (10, 40), "in:far": (50, 80)}
    assert starts == {"t": 0, "both": 10, "s": 40, "last": 80}


@pytest.mark.parametrize(("late", "chosen"), [("", ["1", "2"]), ("2", ["5", "6"])])
def test_figure_6_the_eviction_scheme_with_less_delay_is_adopted(late: str, chosen: list[str]) -> None:
    built = trace(
        [
            kernel("t", 10, "", "1 2 3 4 5 6"),
            kernel("most", 100, "1 2 3 5 6", late),
            kernel("s", 10, "", "four"),
            kernel("after", 10, "4"),
            *(kernel(f"last{pair[0]}", 10, pair, phase=BACKWARD) for pair in ("1 2", "3 4", "5 6")),
        ],
        [block("four", 40), *(block(*each) for each in zip("123456", (20, 20, 10, 10, 20, 20), strict=True))],
    )
    where = node()
    (part,) = rounds_of(plan_of(built, where, 100), task_graph(built, where), where, 100)
    seen: list[set[tuple[str, ...]]] = []

    def look(coming: Instruction) -> None:
        if isinstance(coming, Release) and not seen:
            seen.append({tuple(part.graph.blocks[b].id for b in each) for each in part.schemes(40, ())})

    walked(part, look)
    assert seen == [{("1", "2"), ("5", "6")}]
    starts, copies = times(built, 100)
    assert [name[4:] for name in copies if name.startswith("out:")][:2] == chosen
    assert starts["s"] == 110
    assert copies[f"out:{chosen[0]}"] == (10, 30)


@pytest.mark.parametrize(("until", "begins", "delay"), [("large", 65, 15), ("", 45, 0)])
def test_figure_7_a_prefetch_begins_at_the_last_task_that_overlaps_it_or_once_it_fits(
    until: str, begins: int, delay: int
) -> None:
    built = trace(
        [
            kernel("t", 10, "", "y"),
            kernel("u", 10, "y"),
            kernel("s", 10, "", "large"),
            kernel("one", 10),
            kernel("two", 10, until),
            kernel("three", 10),
            kernel("last", 10, "y", phase=BACKWARD),
        ],
        [block("y", 25), block("large", 60)],
    )
    starts, copies = times(built, 80)
    assert starts == {"t": 0, "u": 10, "s": 35, "one": 45, "two": 55, "three": 65, "last": 75 + delay}
    assert copies == {"out:y": (10, 35), "in:y": (begins, begins + 25)}


def test_the_scheme_that_is_in_time_is_adopted_even_if_it_moves_more_bytes() -> None:
    """`use`, which can start at 105, needs `label` (20 bytes); 20 of the 70 bytes must be evicted for it at 70.

    It is due at `now`: the 20 ns of `now` and the 15 of `between` are left. Offloading `y`, just rewritten, ends at
    90, and the label's fetch at 110. The host has a copy of `x`: if `x` is evicted, the label's fetch ends at 90,
    although fetching `x` (50 bytes) again moves more bytes than offloading and fetching `y`.
    """
    built = trace(
        [
            kernel("t", 10, "x", "y"),
            kernel("u", 10, "y", "y"),
            kernel("now", 20),
            kernel("between", 15),
            kernel("use", 10, "label", phase=BACKWARD),
            kernel("last", 10, "x y", phase=BACKWARD),
        ],
        [held("x", 50, kind=BlockKind.INPUT), held("label", 20, kind=BlockKind.LABEL), block("y", 20)],
    )
    starts, copies = times(built, 70)
    # x is first fetched for 50 ns; for `last` it is fetched again after the label is evicted.
    assert starts == {"t": 50, "u": 60, "now": 70, "between": 90, "use": 105, "last": 165}
    assert copies == {"in:x": (0, 50), "in:label": (70, 90)}


@pytest.mark.parametrize(("between", "begins", "algorithm"), [(5, 15, "gemm"), (15, 60, "fft")])
def test_equation_10_a_faster_algorithm_is_chosen_if_its_delay_is_shorter_than_its_speedup(
    between: int, begins: int, algorithm: str
) -> None:
    built = trace(
        [
            kernel("t", 10, "", "y"),
            kernel("between", between, "y"),
            kernel("s", 100, "", "small", op="conv2d"),
            kernel("last", 10, "y", phase=BACKWARD),
        ],
        [block("y", 50), block("small", 10)],
        algorithms=(AlgorithmChoice("s", "gemm", 100, 0), AlgorithmChoice("s", "fft", 60, 60)),
    )
    plan = plan_of(built, node(), 100)
    assert plan.program.transforms[1].chosen == ((2, algorithm),)  # type: ignore[attr-defined]
    assert times(built, 100)[0]["s"] == begins
