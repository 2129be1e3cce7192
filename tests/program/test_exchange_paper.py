"""Several GPUs as in moDNN (Chen et al., TPDS 2019, section 6), compared with hand calculations.

Copies share a bus of 1.2 bytes per nanosecond: one to four copies have 1.2, 0.6, 0.4 and 0.3 each.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from simgpu.graph.replicate import Exchange, Replicate
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import Duplex, HostSpec, NodeSpec, SwitchSpec
from simgpu.machine.run import run_program
from simgpu.program.data_parallel import DataParallel, priced
from simgpu.program.instructions import (
    DEVICE,
    HOST,
    Acquire,
    Await,
    Copy,
    InitialContents,
    Instruction,
    Launch,
    Program,
    Release,
    Segment,
    Signal,
)
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement, Swap
from simgpu.program.verify import verify
from simgpu.timeline.model import SpanKind, Timeline
from simgpu.timeline.streams import StreamId
from simgpu.trace.model import BlockKind, Trace
from tests.semantics.hand_made import BACKWARD, GB, block, graph, held, kernel, node, trace
from tests.semantics.networks import network, on_all, several, sharing

BUS = 12 * GB // 10
#: Two bytes a nanosecond.
TWICE = 2 * GB

SUMMED, GATHER = Exchange.HOST, Exchange.GATHER


def on_a_bus(gpus: int) -> NodeSpec:
    """Links of 1.2 GB/s behind one switch of 1.2 GB/s."""
    return several(gpus, switch=BUS, base=node(out=BUS, back=BUS))


def run(tasks: TaskGraph, how: Replicate, where: NodeSpec, placement: Placement | None = None) -> Timeline:
    program = on_all(lower(tasks, placement or Placement()), tasks, where, how)
    verify(program, tasks)
    result = run_program(program, tasks, where, budget=None)
    assert result.steady
    return result.timeline


def since_start(timeline: Timeline) -> dict[tuple[int, str, str], tuple[int, int]]:
    """Start and end of each kernel and copy of the last iteration, relative to its first kernel."""
    works = [span for span in timeline if span.iteration == 2 and not span.kind.is_stall]
    begun = min(span.start_ns for span in works)
    return {(span.gpu, span.label, span.name): (span.start_ns - begun, span.end_ns - begun) for span in works}


def iteration_ns(timeline: Timeline) -> int:
    start, end = timeline.window(-1)
    return end - start


# --- copies that share the bus -----------------------------------------------------------------------------


def copy_ends(sent: list[tuple[str, int, int]], where: NodeSpec) -> list[int]:
    """The end of each GPU's copy, given by its direction, start and bytes."""
    gpus = range(len(sent))
    tasks = graph(
        [kernel(f"until{gpu}", begins) for gpu, (_, begins, _) in enumerate(sent)],
        [held(f"x{gpu}", size) for gpu, (*_, size) in enumerate(sent)],
    )
    streams: dict[StreamId, tuple[Instruction, ...]] = {}
    for gpu, (direction, *_) in enumerate(sent):
        streams[StreamId(gpu, "compute")] = (Launch(gpu), Signal(gpu))
        if direction == "out":
            copy: tuple[Instruction, ...] = (Acquire((gpu,), HOST), Copy(gpu, DEVICE, HOST), Release((gpu,), HOST))
        else:
            copy = (Copy(gpu, HOST, DEVICE),)
        streams[StreamId(gpu, "d2h" if direction == "out" else "h2d")] = (Await(gpu), *copy)
    on_host = InitialContents(HOST, tuple(gpu for gpu in gpus if sent[gpu][0] == "in"))
    others = (*(InitialContents(DEVICE, (gpu,), gpu) for gpu in gpus[1:]), on_host)
    program = Program((Segment(streams),), resident=(0,), other_contents=others)
    verify(program, tasks)
    timeline = run_program(program, tasks, where, budget=None, iterations=1).timeline
    ends = {span.gpu: span.end_ns for span in timeline if span.kind is SpanKind.COPY}
    return [ends[gpu] for gpu in gpus]


@pytest.mark.parametrize("gpus", [1, 2, 3, 4])
@pytest.mark.parametrize("direction", ["out", "in"])
def test_copies_that_begin_together_share_the_bus_evenly(gpus: int, direction: str):
    assert copy_ends([(direction, 0, 120)] * gpus, on_a_bus(gpus)) == [100 * gpus] * gpus


def test_copies_with_different_starts_share_the_bus_while_they_overlap():
    """First 1, 2, 3 and 4 copies, then 3, 2 and 1: the remaining bytes of each at every change.

    ====  ===  ===  ===  ===
    time  0    1    2    3
    ====  ===  ===  ===  ===
    0     460
    100   340  480
    200   280  420  480
    300   240  380  440  488
    1100  0    140  200  248
    1450       0    60   108
    1550            0    48
    1590                 0
    ====  ===  ===  ===  ===
    """
    sent = [("out", 0, 460), ("out", 100, 480), ("out", 200, 480), ("out", 300, 488)]
    assert copy_ends(sent, on_a_bus(4)) == [1100, 1450, 1550, 1590]


def test_a_gpu_outside_the_switch_does_not_share_its_bandwidth():
    where = replace(on_a_bus(3), switches=(SwitchSpec((0, 1), BUS, BUS),))
    assert copy_ends([("out", 0, 120), ("out", 50, 120), ("out", 50, 120)], where) == [150, 200, 150]


@pytest.mark.parametrize(("duplex", "ends"), [(Duplex.FULL, [100, 150]), (Duplex.HALF, [150, 200])])
def test_a_half_duplex_switch_is_shared_by_both_directions(duplex: Duplex, ends: list[int]):
    where = replace(on_a_bus(2), switches=(SwitchSpec((0, 1), BUS, BUS, duplex),))
    assert copy_ends([("out", 0, 120), ("in", 50, 120)], where) == ends


def test_half_duplex_links_of_two_gpus_are_independent():
    where = several(2, switch=None, base=node(out=BUS, back=BUS, duplex=Duplex.HALF))
    assert copy_ends([("out", 0, 120), ("in", 50, 120)], where) == [100, 150]


# --- moDNN's exchange --------------------------------------------------------------------------------------


def three_layers() -> Trace:
    """Weights of 48, 120 and 72 bytes: 40, 100 and 60 ns for one copy. Gradients are written at 80, 180 and 280 ns."""
    return network([48, 120, 72], forward=10, gradient=50, error=50)


@pytest.mark.parametrize(
    ("gpus", "out", "updates", "back"),
    [
        # Copies take 2 times as long; the host reads and writes 4 times the bytes of a weight at 2.4 per nanosecond.
        (2, [(400, 480), (200, 400), (80, 200)], [(600, 680), (400, 600), (200, 320)], [800, 600, 320]),
        # 4 times as long, and 6 times the bytes: 3 times as long as a copy.
        (4, [(720, 880), (320, 720), (80, 320)], [(1020, 1140), (720, 1020), (320, 500)], [1420, 1020, 500]),
    ],
)
def test_the_exchange_of_three_layers_matches_the_hand_calculation(
    gpus: int, out: list[tuple[int, int]], updates: list[tuple[int, int]], back: list[int]
):
    """Each stream handles layers 3, 2 and 1 in turn; the fetch of the last weight ends the iteration."""
    how = Replicate(gpus, SUMMED, 2 * BUS)
    timeline = run(sharing(three_layers()), how, on_a_bus(gpus))
    result = since_start(timeline)
    lone = [40, 100, 60]
    for n in (1, 2, 3):
        assert result[0, "compute", f"update:w{n}"] == updates[n - 1]
        for gpu in range(gpus):
            name = f"w{n}.grad" + (f".gpu{gpu}" if gpu else "")
            assert result[gpu, "copy_d2h", name] == out[n - 1]
            assert result[gpu, "copy_h2d", f"w{n}"] == (back[n - 1], back[n - 1] + gpus * lone[n - 1])
    assert iteration_ns(timeline) == {2: 880, 4: 1580}[gpus]


@pytest.mark.parametrize("gpus", [2, 3, 4])
def test_each_layer_has_two_copies_per_gpu(gpus: int):
    """Section 6.2 counts 2M of them for a layer on M GPUs."""
    result = since_start(run(sharing(three_layers()), Replicate(gpus, SUMMED, TWICE), on_a_bus(gpus)))
    copies = Counter(name.split(".")[0] for _, kind, name in result if kind != "compute")
    assert copies == {"w1": 2 * gpus, "w2": 2 * gpus, "w3": 2 * gpus}


@pytest.mark.parametrize(("cores", "host"), [(1, 4000), (2, 2000), (20, 1600)])
def test_more_host_cores_shorten_the_host_update(cores: int, host: int):
    """Two gradients and the weight are read and the weight written, at 1 byte per nanosecond and core, at most 2.5."""
    where = several(2, switch=None)
    where = replace(where, host=HostSpec(cores=20, accumulate_bandwidth=GB, accumulate_limit=25 * GB // 10))
    timeline = run(sharing(network([1000])), priced(DataParallel(2, SUMMED, cores), where), where)
    assert iteration_ns(timeline) == 20 + 1000 + host + 1000


def used_twice(last: int) -> Trace:
    """One weight in two layers; two kernels write its gradient, then a kernel of `last` ns uses the weight."""
    return trace(
        [
            kernel("F1", 10, "x0 w", "x1"),
            kernel("F2", 10, "x1 w", "x2"),
            kernel("W2", 10, "x2 x1", "w.grad", phase=BACKWARD),
            kernel("E2", 10, "x2 w", "g1", phase=BACKWARD),
            kernel("W1", 10, "g1 x0 w.grad", "w.grad", phase=BACKWARD),
            kernel("E1", last, "g1 w", "g0", phase=BACKWARD),
        ],
        [
            held("x0", 20, kind=BlockKind.INPUT),
            *(block(name, 20) for name in ("x1", "x2", "g1", "g0")),
            held("w", 100, kind=BlockKind.WEIGHT),
            block("w.grad", 100, kind=BlockKind.WEIGHT_GRADIENT),
        ],
    )


@pytest.mark.parametrize(("last", "back"), [(1000, 1050), (300, 350), (299, 350), (0, 350)])
def test_a_weight_shared_by_two_layers_is_exchanged_once(last: int, back: int):
    """Its gradient is complete at 50, on the host at 150, and used at 350; the old weight is used until 50 + last."""
    result = since_start(run(sharing(used_twice(last)), Replicate(2, SUMMED, TWICE), several(2, switch=None)))
    copies = {name: times for (gpu, kind, name), times in result.items() if kind != "compute" and not gpu}
    assert copies == {"w.grad": (50, 150), "w": (back, back + 100)}


def test_gpus_wait_for_each_other_only_at_the_end_of_an_iteration():
    """GPU 1 fetches x1 through a narrow switch of its own; the kernels of GPU 0 are not delayed."""
    tasks = sharing(network([10, 10], gradient=100, error=100))
    where = replace(several(2), switches=(SwitchSpec((1,), GB // 100, GB // 100),))
    swap = Swap(tasks.block("x1"), tasks.kernel("F2"), tasks.kernel("W2"), tasks.kernel("W2"))
    result = since_start(run(tasks, Replicate(2, SUMMED, TWICE), where, Placement((swap,))))
    # x1 is offloaded after F2 in 20 ns and fetched in 20 ns; on GPU 1 both take 2000 ns.
    assert [result[0, "compute", name] for name in ("W2", "E2", "W1")] == [(60, 160), (160, 260), (260, 360)]
    assert result[1, "compute", "W2.gpu1"] == (4020, 4120)
    assert result[0, "copy_d2h", "w2.grad"][0] == 160
    assert result[0, "compute", "update:w2"][0] == result[1, "copy_d2h", "w2.grad.gpu1"][1]


@pytest.mark.parametrize("exchange", [Exchange.GATHER, Exchange.HOST])
def test_all_iterations_take_the_same_time(exchange: Exchange):
    tasks, where = sharing(three_layers()), on_a_bus(4)
    program = on_all(lower(tasks, Placement()), tasks, where, Replicate(4, exchange, TWICE))
    ends = run_program(program, tasks, where, budget=None, iterations=6).timeline.iteration_ends_ns
    times = [after - before for before, after in pairwise((0, *ends))]
    assert len(set(times)) == 1


# --- the naive exchange ------------------------------------------------------------------------------------


def test_gathering_two_weights_on_two_gpus_matches_the_hand_calculation():
    """30 and 100 bytes over separate links, a byte per nanosecond; an addition takes as long as a copy.

    Backward ends at 50, both gradients are on the host at 180. w1's is fetched until 210 and added until 240, w2's
    until 340 and 440. Both weights are updated at 450, on the host at 580, on the other GPU at 710.
    """
    timeline = run(sharing(network([30, 100], step=5)), Replicate(2, GATHER, 3 * GB), several(2, switch=None))
    result = since_start(timeline)
    assert result[1, "copy_d2h", "w2.grad.gpu1"] == (80, 180)
    assert result[0, "compute", "accumulate:w1.grad.gpu1"] == (210, 240)
    assert result[0, "copy_h2d", "w2.grad.gpu1"] == (240, 340)
    assert result[0, "compute", "S1"] == (440, 445)
    assert result[0, "copy_d2h", "w1"] == (450, 480)
    assert result[1, "copy_h2d", "w1"] == (580, 610)
    assert iteration_ns(timeline) == 710


def test_gathering_on_four_gpus_behind_a_bus_matches_the_hand_calculation():
    """36 and 120 bytes: 30 and 100 ns for a single copy and for an addition; an optimizer step takes 210 ns.

    The three others send w1's gradient until 140 and w2's until 440. GPU 0 alone uses the bus, fetches and adds w1's
    three gradients until 620 and w2's until 1220. The two optimizer steps end at 1640, both weights are on the host at
    1770. They reach the three others, which share the bus, 90 and 390 ns later.
    """
    timeline = run(sharing(network([36, 120], step=210)), Replicate(4, GATHER, 3 * BUS), on_a_bus(4))
    result = since_start(timeline)
    fetched = [result[0, "copy_h2d", f"w2.grad.gpu{gpu}"] for gpu in (1, 2, 3)]
    assert fetched == [(620, 720), (820, 920), (1020, 1120)]
    assert {result[gpu, "copy_h2d", "w1"] for gpu in (1, 2, 3)} == {(1770, 1860)}
    assert iteration_ns(timeline) == 2160


@pytest.mark.parametrize("gpus", [2, 3, 4])
def test_the_naive_exchange_is_a_sequence_appended_to_the_iteration(gpus: int):
    """Section 7.5: over one bus, all gradients go to the host, to GPU 0, all weights to the host, to all others."""
    sizes, compute, others = (36, 120, 60), 3 * 10 + 5 * 10, gpus - 1
    lone = sum(sizes) * 10 // 12
    timeline = run(sharing(network(sizes, step=5)), Replicate(gpus, GATHER, 3 * BUS), on_a_bus(gpus))
    added, steps = others * lone, 3 * 5
    assert iteration_ns(timeline) == compute + others * lone * 2 + added + steps + lone + others * lone


@pytest.mark.parametrize("gpus", [2, 4])
def test_gathering_needs_memory_for_one_more_gradient_at_a_time(gpus: int):
    tasks = sharing(network([36, 120], step=5))
    one = lower(tasks, Placement())
    program = on_all(one, tasks, on_a_bus(gpus), Replicate(gpus, GATHER, 3 * BUS))
    timeline = run_program(program, tasks, on_a_bus(gpus), budget=None).timeline
    # Input, weights and gradients are resident all the time; the feature maps are already released.
    assert int(timeline.memory("device").live.max()) == 20 + 2 * (36 + 120) + 120
