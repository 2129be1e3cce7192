"""Several GPUs and their exchange of gradients: closed forms on chains of layers, and programs `verify` refuses."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu.errors import InputError, ProgramError
from simgpu.graph.replicate import Exchange, Replicate
from simgpu.graph.split import Split
from simgpu.graph.transforms import transformed
from simgpu.hardware.spec import NodeSpec
from simgpu.machine.run import run_program
from simgpu.program.exchange import ACCUMULATION
from simgpu.program.instructions import (
    COMPUTE,
    D2H,
    DEVICE,
    H2D,
    HOST,
    Acquire,
    Await,
    Copy,
    Instruction,
    Launch,
    Program,
    Release,
    Segment,
    Signal,
)
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement, Swap
from simgpu.program.text import from_json, listing, to_json
from simgpu.program.verify import verify
from simgpu.timeline.model import SpanKind, Timeline
from simgpu.timeline.streams import StreamId
from simgpu.trace.model import Trace
from tests.semantics.hand_made import GB, node
from tests.semantics.networks import exchanges, moved, network, networks, on_all, several, sharing, switched_nodes
from tests.semantics.reference import ReferenceMachine

SUMMED, GATHER = Exchange.HOST, Exchange.GATHER
#: Two bytes a nanosecond.
TWICE = 2 * GB
#: Bytes that take 100 ns over a link of `divisible`.
SIZE = 120


def divisible(gpus: int) -> NodeSpec:
    """Links and a switch of 1.2 GB/s, divisible by one to four GPUs."""
    rate = 12 * GB // 10
    return several(gpus, switch=rate, base=node(out=rate, back=rate))


def spans(timeline: Timeline, iteration: int = -1) -> dict[str, tuple[int, int]]:
    """Start and end of kernels and copies of an iteration; copies are called ``out:w1.grad`` and ``gpu1.in:w1``."""
    prefix = {"copy_d2h": "out:", "copy_h2d": "in:", "compute": ""}
    number = range(len(timeline.iteration_ends_ns))[iteration]
    return {
        ("" if span.label == "compute" or not span.gpu else f"gpu{span.gpu}.") + prefix[span.label] + span.name: (
            span.start_ns,
            span.end_ns,
        )
        for span in timeline
        if span.label in prefix and span.iteration == number
    }


def run(trace: Trace, how: Replicate, where: NodeSpec | None = None, iterations: int = 3) -> Timeline:
    tasks = sharing(trace)
    on = where or several(how.gpus)
    program = on_all(lower(tasks, Placement()), tasks, on, how)
    verify(program, tasks)
    result = run_program(program, tasks, on, budget=None, iterations=iterations)
    assert result.steady
    return result.timeline


def iteration_ns(timeline: Timeline) -> int:
    start, end = timeline.window(-1)
    return end - start


# --- the naive exchange ------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [2, 3, 4])
def test_gathering_behind_a_switch_matches_the_closed_form(gpus: int):
    """All other GPUs send at once, GPU 0 fetches and adds one gradient after the other, and all wait for it."""
    others, compute, step, copied, added = gpus - 1, 20, 5, 100, 60
    timeline = run(network([SIZE], step=step), Replicate(gpus, GATHER, 3 * SIZE * GB // added), divisible(gpus))
    out, fetched, spread = others * copied, others * (copied + added), copied + others * copied
    assert iteration_ns(timeline) == compute + out + fetched + step + spread


@pytest.mark.parametrize("gpus", [2, 3, 4])
def test_gathering_without_a_switch_matches_the_closed_form(gpus: int):
    """All gradients are sent in parallel, and new weights reach all other GPUs together."""
    size, others = 100, gpus - 1
    timeline = run(network([size], step=5), Replicate(gpus, GATHER, 3 * size * GB // 60), several(gpus, switch=None))
    assert iteration_ns(timeline) == 20 + size + others * (size + 60) + 5 + size + size


def test_each_gradient_addition_costs_a_kernel_launch():
    plain, slow = (run(network([100]), Replicate(2, GATHER, GB, overhead)) for overhead in (0, 7))
    assert iteration_ns(slow) == iteration_ns(plain) + 7


def test_gathering_steps_run_one_after_another():
    """GPU 0 adds a gradient before it fetches the next; the other steps handle all weights together."""
    result = spans(run(network([100, 100], step=5), Replicate(2, GATHER, 3 * GB)))
    steps = [
        *("gpu1.out:w1.grad.gpu1", "gpu1.out:w2.grad.gpu1"),
        *("in:w1.grad.gpu1", "accumulate:w1.grad.gpu1", "in:w2.grad.gpu1", "accumulate:w2.grad.gpu1"),
        *("S1", "S2", "out:w1", "out:w2", "gpu1.in:w1", "gpu1.in:w2"),
    ]
    assert all(result[before][1] == result[after][0] for before, after in pairwise(steps))


def test_a_joint_optimizer_step_waits_for_all_gradients():
    result = spans(run(network([100, 100], step=5, together=True), Replicate(2, GATHER, 3 * GB)))
    assert result["step"][0] == max(result[f"accumulate:w{n}.grad.gpu1"][1] for n in (1, 2))


def test_without_a_recorded_optimizer_plain_gradient_descent_is_used():
    """Two kernels read two gradients and a weight and write a weight: 300 bytes each, 3 per nanosecond."""
    timeline = run(network([100], step=None), Replicate(2, GATHER, 3 * GB))
    assert iteration_ns(timeline) == 20 + 100 + 100 + 100 + 100 + 100 + 100


# --- moDNN's exchange --------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [2, 3, 4])
def test_the_host_update_behind_a_switch_matches_the_closed_form(gpus: int):
    """All gradients are offloaded, the host reads them and the weight, writes the weight, all weights are fetched."""
    copied = 100
    timeline = run(network([SIZE]), Replicate(gpus, SUMMED, TWICE), divisible(gpus))
    assert iteration_ns(timeline) == 20 + gpus * copied + (gpus + 2) * SIZE // 2 + gpus * copied


def test_optimizer_state_on_the_host_adds_to_the_update_time():
    timeline = run(network([100], momentum=True), Replicate(2, SUMMED, TWICE))
    assert iteration_ns(timeline) == 20 + 200 + (2 + 4) * 100 // 2 + 200
    # Input, feature map, weight and gradient; the momentum is on the host.
    assert {int(curve.live.max()) for curve in timeline.device_memories} == {20 + 20 + 100 + 100}
    assert timeline.memory("host").live.tolist()[0] == 200


def test_a_gradient_is_sent_once_written_and_the_weight_returns_during_compute():
    """The upper layer's exchange completely overlaps the lower layer's backward."""
    trace = network([10, 100], gradient=1000, error=1000)
    result = spans(run(trace, Replicate(2, SUMMED, TWICE)))
    built = result["W2"][1]
    assert result["out:w2.grad"] == result["gpu1.out:w2.grad.gpu1"] == (built, built + 200)
    assert result["update:w2"] == (built + 200, built + 400)
    # The kernel that computes the input's gradient still uses the old weight.
    assert result["E2"] == (built, built + 1000)
    assert result["in:w2"] == result["gpu1.in:w2"] == (built + 1000, built + 1200)
    timeline = run(trace, Replicate(2, SUMMED, TWICE))
    assert iteration_ns(timeline) == 2 * 10 + 3 * 1000 + 20 + 20 + 20


def test_more_cores_shorten_the_host_update():
    one, two = (iteration_ns(run(network([100]), Replicate(2, SUMMED, rate))) for rate in (GB, TWICE))
    assert one - two == (2 + 2) * 100 // 2


def test_the_next_iteration_begins_on_all_gpus_once_all_weights_have_arrived():
    timeline = run(network([10, 300]), Replicate(3, SUMMED, TWICE))
    before, after = spans(timeline, -2), spans(timeline, -1)
    begun = {after[f"F1{gpu}"][0] for gpu in ("", ".gpu1", ".gpu2")}
    assert begun == {max(end for name, (_, end) in before.items() if "in:w" in name)}


def test_gradients_are_exchanged_only_in_the_last_round():
    """A batch of 5 in sub-batches of 2: two rounds, and a smaller one."""
    for batch, sub_batch in ((4, 1), (5, 2)):
        tasks = sharing(network([1000], batch=batch, step=5))
        one = lower(Split(sub_batch).apply(tasks), Placement())
        one = replace(one, transforms=(Split(sub_batch),))
        for exchange in (Exchange.GATHER, Exchange.HOST):
            how = Replicate(2, exchange, TWICE)
            program = on_all(one, tasks, several(2), how)
            verify(program, tasks)
            timeline = run_program(program, tasks, several(2), budget=None).timeline
            last = timeline.iteration == 2
            copies = timeline.kind == SpanKind.COPY
            assert int((last & copies).sum()) == 4
            built = [span for span in timeline if span.iteration == 2 and span.name.startswith("W1")]
            left = next(span for span in timeline if span.iteration == 2 and span.name == "w1.grad.gpu1")
            assert left.start_ns == max(span.end_ns for span in built)


def test_a_queued_copy_is_delayed_by_earlier_gradient_copies():
    """x1 is fetched for the last kernel on the copy-in stream, behind the weight of layer 2."""
    tasks = sharing(network([10, 10], gradient=100, error=100))
    swap = Swap(tasks.block("x0"), tasks.kernel("F1"), tasks.kernel("W1"), tasks.kernel("W1"))
    one = lower(tasks, Placement((swap,)))
    for rate, first in ((GB, "in:w2"), (GB // 100, "in:x0")):
        program = on_all(one, tasks, several(2), Replicate(2, SUMMED, rate))
        verify(program, tasks)
        result = spans(run_program(program, tasks, several(2), budget=None).timeline)
        assert min(("in:w2", "in:x0"), key=lambda name: result[name]) == first


# --- refused programs ---------------------------------------------------------------------------------------

TASKS = sharing(network([10, 100], momentum=True))


def edited(exchange: Exchange, stream: StreamId, drop: Instruction) -> Program:
    """The program of two GPUs without the last occurrence of an instruction of a stream."""
    program = on_all(lower(TASKS, Placement()), TASKS, several(2), Replicate(2, exchange, TWICE))
    verify(program, TASKS)
    (segment,) = program.segments
    code = list(segment.streams[stream])
    at = len(code) - 1 - code[::-1].index(drop)
    return replace(program, segments=(Segment({**segment.streams, stream: (*code[:at], *code[at + 1 :])}),))


def refused(program: Program) -> str:
    with pytest.raises(ProgramError) as caught:
        verify(program, TASKS)
    return str(caught.value)


def waits(program: Program, stream: StreamId, before: type[Instruction]) -> Instruction:  # type: ignore[valid-type]
    """The events a stream awaits just before its last instruction of a kind."""
    code = program.segments[0].streams[stream]
    last = max(at for at, instruction in enumerate(code) if isinstance(instruction, before))
    return next(instruction for instruction in reversed(code[:last]) if isinstance(instruction, Await))


def replicated(exchange: Exchange) -> Program:
    return on_all(lower(TASKS, Placement()), TASKS, several(2), Replicate(2, exchange, TWICE))


@pytest.mark.parametrize("exchange", [Exchange.GATHER, Exchange.HOST])
def test_a_gradient_that_is_never_sent_is_refused(exchange: Exchange):
    ran = transformed(TASKS, replicated(exchange).transforms)
    drop = Copy(ran.block("w1.grad.gpu1"), DEVICE, HOST)
    assert "holds no value in host memory" in refused(edited(exchange, StreamId(1, "d2h"), drop))


@pytest.mark.parametrize("exchange", [Exchange.GATHER, Exchange.HOST])
def test_a_weight_that_never_returns_is_refused(exchange: Exchange):
    message = refused(edited(exchange, StreamId(1, "h2d"), Copy(TASKS.block("w1"), HOST, DEVICE)))
    assert "w1" in message
    assert "older value" in message or "wrong version" in message


def test_a_weight_that_returns_while_the_old_one_is_used_is_refused():
    """A weight's fetch waits for the host and for the last kernel that uses the old weight; the latter is removed."""
    program = replicated(SUMMED)
    code = program.segments[0].streams[StreamId(1, "h2d")]
    at = next(at for at in range(len(code)) if isinstance(code[at], Await) and isinstance(code[at + 1], Await))
    message = refused(edited(SUMMED, StreamId(1, "h2d"), code[at + 1]))
    assert "block w2 is overwritten while gpu1.compute may still be using it" in message


def test_kernels_that_do_not_wait_for_their_weights_are_refused():
    """Without the wait for its last weight, the GPU may read it in the next iteration before it has arrived."""
    for gpu in (0, 1):
        stream = StreamId(gpu, "compute")
        drop = waits(replicated(SUMMED), stream, Signal)
        assert "may not hold its value" in refused(edited(SUMMED, stream, drop))


def test_a_host_update_that_does_not_wait_for_a_gradient_is_refused():
    drop = waits(replicated(SUMMED), ACCUMULATION, Launch)
    assert "may not hold its value in host memory" in refused(edited(SUMMED, ACCUMULATION, drop))


def test_a_fetch_on_gpu_0_that_does_not_wait_for_the_gradient_is_refused():
    """Before the first fetch, GPU 0 waits for the gradients sent by the others."""
    code = replicated(GATHER).segments[0].streams[H2D]
    first = next(
        at for at, instruction in enumerate(code) if (isinstance(instruction, Copy) and instruction.dst == DEVICE)
    )
    drop = next(instruction for instruction in reversed(code[:first]) if isinstance(instruction, Await))
    assert "w1.grad.gpu1 holds no host memory" in refused(edited(GATHER, H2D, drop))


def test_an_unbalanced_acquire_or_release_of_a_fetched_gradient_is_refused():
    ran = transformed(TASKS, replicated(GATHER).transforms)
    block = ran.block("w1.grad.gpu1")
    assert "holds no device memory" in refused(edited(GATHER, H2D, Acquire((block,))))
    assert "leaves block w1.grad.gpu1 in device memory" in refused(edited(GATHER, COMPUTE, Release((block,))))


def test_a_policy_that_moves_exchanged_weights_is_refused():
    swap = Swap(TASKS.block("w2"), TASKS.kernel("F2"), TASKS.kernel("E2"), TASKS.kernel("E2"))
    with pytest.raises(InputError, match="moves 'w2' between GPU and host itself"):
        on_all(lower(TASKS, Placement((swap,))), TASKS, several(2), Replicate(2, SUMMED, GB))


# --- properties of all programs -------------------------------------------------------------------------------------

many = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=40)


@many
@given(st.data(), st.integers(2, 3), st.booleans())
def test_what_verify_accepts_reads_the_right_versions_under_any_timing(data: st.DataObject, gpus: int, barrier: bool):
    tasks = sharing(data.draw(networks()))
    where = data.draw(switched_nodes(gpus))
    how = data.draw(exchanges(gpus))
    program = on_all(lower(tasks, data.draw(moved(tasks, layer_barrier=barrier))), tasks, where, how)
    (segment,) = program.segments
    streams = {stream: list(code) for stream, code in segment.streams.items()}
    places = [(stream, at) for stream, code in streams.items() for at in range(len(code))]
    stream, at = data.draw(st.sampled_from(places))
    if data.draw(st.booleans()):
        del streams[stream][at]
    else:
        streams[stream][at : at + 2] = reversed(streams[stream][at : at + 2])
    mutant = replace(program, segments=(Segment({name: tuple(code) for name, code in streams.items()}),))
    try:
        verify(mutant, tasks)
    except ProgramError:
        return
    ran = transformed(tasks, mutant.transforms)
    times = st.sampled_from([0, 1, 5, 1000, 10**6])
    durations = data.draw(st.lists(times, min_size=len(ran.kernels), max_size=len(ran.kernels)))
    machine = ReferenceMachine(mutant, ran, where, iterations=3, durations=durations)
    finished = machine.run()
    assert machine.wrong == []
    assert finished


@many
@given(st.data(), st.integers(2, 4))
def test_a_program_of_several_gpus_survives_json(data: st.DataObject, gpus: int):
    tasks = sharing(data.draw(networks()))
    where = data.draw(switched_nodes(gpus))
    program = on_all(lower(tasks, Placement()), tasks, where, data.draw(exchanges(gpus)))
    assert from_json(to_json(program)) == program


def test_a_listing_shows_the_contents_of_every_memory():
    lines = listing(replicated(SUMMED), TASKS).splitlines()
    assert lines[:3] == [
        "resident: x0 w1 w2",
        "on GPU 1: x0.gpu1 w1 w2",
        "in host memory: w1 w1.momentum w2 w2.momentum",
    ]
    assert "  gpu1.d2h" in lines


def test_without_a_split_batch_exchange_copies_have_their_own_streams():
    assert {str(stream) for stream in replicated(SUMMED).streams} == {
        *("compute", "d2h", "h2d", "host1", "gpu1.compute", "gpu1.d2h", "gpu1.h2d")
    }
    assert D2H in replicated(SUMMED).streams


@pytest.mark.parametrize("exchange", [Exchange.GATHER, Exchange.HOST])
def test_events_order_instructions_of_zero_duration(exchange: Exchange):
    """x0's fetch for the last kernel ends at the instant at which both gradients have arrived."""
    trace = network([10, 10], forward=0, error=0, gradient=0, step=None)
    tasks = sharing(replace(trace, blocks=tuple(replace(b, bytes=0) if b.id == "x0" else b for b in trace.blocks)))
    swap = Swap(tasks.block("x0"), tasks.kernel("F1"), tasks.kernel("W1"), tasks.kernel("W1"))
    program = on_all(lower(tasks, Placement((swap,))), tasks, several(2), Replicate(2, exchange, TWICE))
    verify(program, tasks)
    assert run_program(program, tasks, several(2), budget=None).steady
