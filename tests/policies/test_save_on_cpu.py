"""Synchronous offload of every saved tensor: times, bytes and memory by closed forms and by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.graph.saved import saved_tensors
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import HostSpec, NodeSpec
from simgpu.memory.transfer import copy_ns
from simgpu.program.text import from_json, listing, to_json
from simgpu.simulation.config import RunConfig
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain
from simgpu.trace.folder import load_trace
from simgpu.trace.model import RELEASED_AT_END, BlockKind, SavedTensor, Trace
from tests.policies.framework_runs import peak, run, used, work
from tests.semantics.hand_made import BACKWARD, OPTIMIZER, block, held, kernel, node, trace

numbers = st.integers(1, 60)
layers = st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=6)


@settings(max_examples=25, deadline=None)
@given(built=layers, bandwidth=st.sampled_from([10**9, 3 * 10**8, 7 * 10**9]), latency=st.integers(0, 9))
def test_copies_never_overlap_kernels(built: list[tuple[int, int, int]], bandwidth: int, latency: int) -> None:
    """The step time is compute plus an offload and a fetch of every layer input, one after another."""
    forward, backward, sizes = map(list, zip(*built, strict=True))
    result = run(chain(forward, backward, sizes), "save_on_cpu", bandwidth=bandwidth, latency=latency)
    copies = sum(copy_ns(size, bandwidth, latency) for size in sizes)
    assert result.iteration_ns == sum(forward) + sum(backward) + 2 * copies
    assert result.metrics.copied_bytes["d2h"] == result.metrics.copied_bytes["h2d"] == sum(sizes)


@settings(max_examples=25, deadline=None)
@given(built=layers, pageable=st.sampled_from([10**9, 3 * 10**8, 7 * 10**9]))
def test_pageable_copies_take_the_time_of_pageable_memory(built: list[tuple[int, int, int]], pageable: int) -> None:
    forward, backward, sizes = map(list, zip(*built, strict=True))
    where = machine(pageable)
    result = simulate(chain(forward, backward, sizes), where, "save_on_cpu", parameters={"pin_memory": False})
    copies = sum(copy_ns(size, pageable, 0) for size in sizes)
    assert result.iteration_ns == sum(forward) + sum(backward) + 2 * copies
    assert any(note.startswith("copies are of pageable memory") for note in result.notes)
    slow = replace(where, link=result.node.link)
    assert simulate(chain(forward, backward, sizes), slow, "save_on_cpu").iteration_ns == result.iteration_ns


def machine(pageable: int | None) -> NodeSpec:
    return replace(node(10**15, out=5 * 10**9, back=4 * 10**9), host=HostSpec(pageable_bandwidth=pageable))


def test_pageable_copies_of_several_gpus_pass_the_memory_of_the_host_three_times() -> None:
    """Four GPUs, of 120 GB/s: a third of it, shared by four, is 10 GB/s, less than the 12 that one GPU copies at."""
    host = HostSpec(pageable_bandwidth=12 * 10**9, memory_bandwidth=120 * 10**9)
    where = replace(node(10**15, out=50 * 10**9, back=40 * 10**9), gpus=4, host=host)
    sizes = [120 * 10**6, 60 * 10**6]
    alone = "copies are of pageable memory, 12 GB/s each way"
    for gpus, rate, note in ((1, 12, alone), (4, 10, f"{alone} on one GPU alone, 10 GB/s on each of these")):
        config = RunConfig(gpus=gpus, exchange="none")
        result = simulate(chain([5, 5], [5, 5], sizes), where, "save_on_cpu", config, parameters={"pin_memory": False})
        assert result.iteration_ns == 20 + 2 * sum(sizes) // rate
        assert note in result.notes


def test_pageable_memory_is_refused_where_its_rate_is_unknown_or_others_copy_too() -> None:
    built, unpinned = load_trace("digits-cnn-adam-cpu"), {"save_on_cpu": {"pin_memory": False}}
    with pytest.raises(InputError, match=r"node.host.pageable_bandwidth: is not set for node .*simgpu validate node"):
        simulate(built, machine(None), "save_on_cpu", parameters={"pin_memory": False})
    with pytest.raises(InputError, match=r"parameters.pin_memory: false inside of another policy"):
        parameters = {"inside": unpinned, "micro_batches": 1}
        simulate(built, machine(10**9), "accumulate", parameters=parameters)


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(1, 100), min_size=2, max_size=7))
def test_memory_of_a_chain(sizes: list[int]) -> None:
    """Besides the resident input, forward kernels hold inputs and outputs, backward kernels the fetched copies."""
    result = run(chain([1] * len(sizes), [1] * len(sizes), sizes), "save_on_cpu")
    forward = [sizes[1], *(a + b for a, b in pairwise([*sizes[1:], 0]))]
    assert peak(result) == sizes[0] + max(*forward, *sizes)


def attention() -> Trace:
    """A product writes `qkv`; three views of it are saved together; `y` is saved by two operators, `w` by one. Every
    forward output is dropped as soon as forward has used it."""
    saved = (
        SavedTensor("w", 24, packed_after=None, unpacked_before="product-back", released_after=RELEASED_AT_END),
        *(
            SavedTensor("qkv", 40, packed_after="product", unpacked_before="attend-back", released_after="attend")
            for _ in range(3)
        ),
        SavedTensor("y", 50, packed_after="attend", unpacked_before="attend-back", released_after="scale"),
        SavedTensor("y", 50, packed_after="attend", unpacked_before="scale-back", released_after="scale"),
        SavedTensor("y", 50, packed_after="scale", released_after="scale"),
    )
    return trace(
        [
            kernel("product", 10, "x w", "qkv"),
            kernel("attend", 10, "qkv", "y"),
            kernel("scale", 10, "y", "l"),
            kernel("scale-back", 10, "l y", "gy", phase=BACKWARD),
            kernel("attend-back", 10, "qkv y gy", "g", phase=BACKWARD),
            kernel("sum-back", 10, "g", "g2", phase=BACKWARD),
            kernel("product-back", 10, "w g2", "gw", phase=BACKWARD),
            kernel("step", 10, "w gw", "w", phase=OPTIMIZER, pure=False),
        ],
        [
            held("x", 1),
            held("w", 24, kind=BlockKind.WEIGHT),
            block("qkv", 120, release="attend-back"),
            block("y", 50, release="attend-back"),
            *(block(name, 0, release="step") for name in ("l", "gy", "g", "g2", "gw")),
        ],
        saved=saved,
    )


def test_each_saved_tensor_is_copied_separately_and_views_by_their_own_bytes():
    """Saved tensors that backward never uses are not copied."""
    result = run(attention(), "save_on_cpu")
    assert [each for each in work(result) if ":" in each[0]] == [
        ("out:w:saved", 0, 24),
        ("out:qkv:saved", 34, 74),
        ("out:qkv:saved2", 74, 114),
        ("out:qkv:saved3", 114, 154),
        ("out:y:saved", 164, 214),
        ("out:y:saved2", 214, 264),
        ("in:y:saved2", 274, 324),
        ("in:qkv:saved", 334, 374),
        ("in:qkv:saved2", 374, 414),
        ("in:qkv:saved3", 414, 454),
        ("in:y:saved", 454, 504),
        ("in:w:saved", 524, 548),
    ]
    assert result.iteration_ns == 80 + 2 * (24 + 120 + 100)


def test_a_fetched_copy_adds_to_the_resident_original():
    """The peak is at `attend back`: x, w, the three views and y. A weight is resident twice at `product back`."""
    result = run(attention(), "save_on_cpu")
    assert peak(result) == 1 + 24 + 120 + 50
    start = next(start for name, start, _ in work(result) if name == "product-back")
    assert used(result, start) == 1 + 24 + 24
    assert result.timeline.memory("host").used.max() == 24 + 120 + 100


def test_a_block_held_to_the_end_stays_next_to_its_copy():
    tasks = attention()
    blocks = tuple(replace(b, release=RELEASED_AT_END) if b.id == "y" else b for b in tasks.blocks)
    saved = tuple(replace(s, released_after=RELEASED_AT_END) if s.block == "y" else s for s in tasks.saved)
    result = run(replace(tasks, blocks=blocks, saved=saved), "save_on_cpu")
    assert peak(result) == 1 + 24 + 120 + 50 + 50
    assert result.iteration_ns == 80 + 2 * (24 + 120 + 100)


def test_the_listing_shows_copies_and_kernels_in_order():
    tasks = chain([5], [7], [100])
    assert listing(run(tasks, "save_on_cpu").program, TaskGraph.of(tasks)).splitlines()[2:] == [
        "  compute",
        "    signal 0",
        "    await 1",
        "    acquire x2",
        "    launch F1",
        "    acquire x1:saved",
        "    signal 2",
        "    await 3",
        "    acquire g1",
        "    launch B1",
        "    release x2 g1 x1:saved",
        "  d2h",
        "    await 0",
        "    acquire host x1:saved",
        "    copy x1 from device to host as x1:saved",
        "    signal 1",
        "  h2d",
        "    await 2",
        "    copy x1:saved from host to device",
        "    release host x1:saved",
        "    signal 3",
    ]


def test_a_program_reads_back_as_it_was_written():
    program = run(attention(), "save_on_cpu").program
    assert from_json(to_json(program)) == program


def test_notes_report_whether_saved_tensors_were_recorded():
    for tasks, message in ((chain([5], [7], [9]), False), (attention(), True)):
        notes = run(tasks, "save_on_cpu").notes
        assert (
            any(note.startswith("tensors that autograd saves: derived from what backward reads") for note in notes)
            != message
        )


def test_save_on_cpu_refuses_several_gpus():
    with pytest.raises(InputError, match="on one GPU, not on several"):
        simulate(load_trace("vgg11-cifar-cpu"), load_node("k40-x4"), "save_on_cpu", gpus=2)


def test_a_recorded_network_has_the_exact_time_and_peak_memory():
    tasks = load_trace("resnet20-cifar-cpu")
    result = run(tasks, "save_on_cpu", bandwidth=12 * 10**9, latency=5000)
    saved = [tensor for tensor in saved_tensors(TaskGraph.of(tasks)).tensors if tensor.bytes]
    assert (
        result.metrics.copied_bytes["d2h"]
        == result.metrics.copied_bytes["h2d"]
        == sum(tensor.bytes for tensor in saved)
    )
    copies = sum(copy_ns(tensor.bytes, 12 * 10**9, 5000) for tensor in saved)
    assert result.iteration_ns == tasks.compute_ns + 2 * copies
    assert (result.iteration_ns, peak(result), result.metrics.copied_bytes["d2h"]) == (
        124_110_609,
        12_033_048,
        73_317_508,
    )
