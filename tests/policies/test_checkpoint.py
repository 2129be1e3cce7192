"""Activation checkpointing: which kernels are recomputed, when, and the memory, by hand and by closed forms."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import MemoryLink, MemorySpec
from simgpu.program.instructions import Section
from simgpu.program.text import from_json, listing, to_json
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain
from simgpu.trace.folder import load_trace
from simgpu.trace.model import RELEASED_AT_END, BlockKind, Trace
from tests.policies.framework_runs import parts, peak, run, run_again, used, work
from tests.semantics.hand_made import BACKWARD, GB, OPTIMIZER, block, held, kernel, node, trace

#: x1 (10 B, the input) to x6 (60 B); layers a.1 to a.3 and b.1 to b.3.
SIX = parts([1, 2, 3, 4, 5, 6], [10, 20, 30, 40, 50, 60], [10, 20, 30, 40, 50, 60], [3, 3])


# --- recomputed kernels and their times ------------------------------------------------------------------------------


def test_a_part_is_recomputed_when_backward_first_needs_a_tensor_saved_inside():
    """Recompute ends with the last kernel that writes a saved tensor: F3 writes b's input, F6 the saved loss."""
    result = [name for name, _, _ in work(run(SIX, "checkpoint", blocks=["a", "b"]))]
    forward, again = ["F1", "F2", "F3", "F4", "F5", "F6"], ["again:F4", "again:F5", "again:F6"]
    assert result == [*forward, *again, "B6", "B5", "B4", "again:F1", "again:F2", "B3", "B2", "B1"]


def test_checkpointing_adds_the_time_of_the_recomputed_kernels():
    result = run(SIX, "checkpoint", blocks=["a", "b"])
    assert result.iteration_ns == result.ideal_ns + (4 + 5 + 6) + (1 + 2)


def test_memory_by_hand():
    """`none` holds x1 .. x6 when forward ends. With both parts checkpointed the peak is x1, x4, x5 and x6: in forward
    at F5, and again when b has been recomputed."""
    assert peak(run(SIX, "none")) == 10 + 20 + 30 + 40 + 50 + 60
    assert peak(run(SIX, "checkpoint", blocks=["a", "b"])) == 10 + 40 + 50 + 60
    assert peak(run(SIX, "checkpoint", blocks=["a"])) == 10 + 40 + 50 + 60
    assert peak(run(SIX, "checkpoint", blocks=["b"])) == 10 + 20 + 30 + 40 + 50 + 60


def test_inputs_of_a_part_are_held_until_its_backward_has_ended():
    """The sum needs neither of its inputs in backward, so the recording drops x when the part has read it; but the
    part holds it for its recompute."""
    tasks = trace(
        [
            kernel("make", 1, "w", "x", layer="stem"),
            kernel("double", 1, "x", "y", layer="a.1"),
            kernel("use", 1, "y", "z", layer="a.2"),
            kernel("head", 1, "z", "l", layer="head"),
            kernel("head-back", 1, "l z", "gz", layer="head", phase=BACKWARD),
            kernel("use-back", 1, "y gz", "gy", layer="a.2", phase=BACKWARD),
            kernel("double-back", 1, "gy", "gx", layer="a.1", phase=BACKWARD),
        ],
        [
            held("w", 1, kind=BlockKind.WEIGHT),
            block("x", 100, release="double"),
            block("y", 1000, release="use-back"),
            *(block(name, 0) for name in ("z", "l", "gz", "gy", "gx")),
        ],
    )
    result = run(tasks, "checkpoint", blocks=["a"])
    assert run_again(result.program, tasks) == ["double"]
    end = next(end for name, _, end in work(result) if name == "use-back")
    assert used(result, end - 1) == 1 + 100 + 1000
    assert used(result, end) == 1


def test_saved_tensors_stay_until_their_backward_operator_has_ended():
    """Backward of a.2 takes y and s together and has two kernels: the first reads both, the second only s. So w (1 B),
    y (1000 B) and the output of the second (600 B) are resident together, although nothing reads y then."""
    tasks = trace(
        [
            kernel("make", 1, "w", "x", layer="stem"),
            kernel("double", 2, "x", "y", layer="a.1"),
            kernel("use", 4, "y", "z s", layer="a.2"),
            kernel("head", 1, "z", "l", layer="head"),
            kernel("head-back", 1, "l z", "gz", layer="head", phase=BACKWARD),
            kernel("use-back", 8, "y s gz", "gy", layer="a.2", phase=BACKWARD),
            kernel("use-back-weight", 16, "s gz", "gw", layer="a.2", phase=BACKWARD),
            kernel("double-back", 1, "gy", "gx", layer="a.1", phase=BACKWARD),
        ],
        [
            held("w", 1, kind=BlockKind.WEIGHT),
            block("y", 1000, release="use-back"),
            block("gw", 600, release="use-back-weight"),
            *(block(name, 0) for name in ("x", "z", "s", "l", "gz", "gy", "gx")),
        ],
    )
    result = run(tasks, "checkpoint", blocks=["a"])
    assert run_again(result.program, tasks) == ["double", "use"]
    start, end = next((start, end) for name, start, end in work(result) if name == "use-back-weight")
    assert (used(result, start - 1), used(result, start), used(result, end)) == (1001, 1601, 1)
    assert peak(result) == 1 + 1000 + 600


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_chains_cut_into_any_parts_recompute_all_but_their_last_layers(data: st.DataObject) -> None:
    """Each part recomputes all its layers but the last; the very last layer is recomputed too, as it saves the loss."""
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    count = sum(lengths)
    numbers = st.lists(st.integers(1, 50), min_size=count, max_size=count)
    forward, backward, sizes = data.draw(numbers), data.draw(numbers), data.draw(numbers)
    built = parts(forward, backward, sizes, lengths)
    chosen = data.draw(st.sets(st.integers(0, len(lengths) - 1), min_size=1))
    result = run(built, "checkpoint", blocks=["abcdefgh"[n] for n in sorted(chosen)])
    again = 0
    for n in chosen:
        first = sum(lengths[:n])
        again += sum(forward[first : first + lengths[n] - (n < len(lengths) - 1)])
    assert result.iteration_ns == sum(forward) + sum(backward) + again
    assert peak(result) <= peak(run(built, "none"))


# --- inputs on the host -----------------------------------------------------------------------------------


def test_an_input_on_the_host_by_hand():
    """The input of b, 20 B, leaves after F3, the last kernel of forward that reads it, and is back before F3 runs
    again."""
    built = parts([100] * 5, [100] * 5, [10, 20, 20, 40, 50], [2, 2, 1])
    result = run(built, "checkpoint", blocks=["a", "b"], inputs="waiting")
    copies = [each for each in work(result) if each[0].startswith(("in:", "out:"))]
    assert copies == [("out:x3", 300, 320), ("in:x3", 620, 640)]
    assert [name for name, *_ in work(result)][:5] == ["F1", "F2", "F3", "out:x3", "F4"]
    assert result.iteration_ns == run(built, "checkpoint", blocks=["a", "b"]).iteration_ns + 40


def test_an_input_on_an_ssd_goes_through_the_host_by_hand():
    """The SSD takes half a byte per nanosecond. Overlapped, no section is behind: compute waits for the way back."""
    built = parts([100] * 5, [100] * 5, [10, 20, 20, 40, 50], [2, 2, 1])
    ssd = MemoryLink(("host", "ssd"), "NVMe", (GB // 2, GB // 2))
    where = replace(node(10**15), more_memories=(MemorySpec("ssd", "SSD"),), more_links=(ssd,))
    plain = simulate(built, where, "checkpoint", parameters={"blocks": ["a", "b"]})
    waiting, overlapped = (
        simulate(built, where, "checkpoint", parameters={"blocks": ["a", "b"], "inputs": each, "to": "ssd"})
        for each in ("waiting", "overlapped")
    )
    copies = [
        (span.stream, span.start_ns - waiting.timeline.iteration_ends_ns[0], span.end_ns - span.start_ns)
        for span in waiting.timeline
        if span.iteration == 1 and span.bytes and span.name == "x3"
    ]
    assert copies == [("d2h", 300, 20), ("host2ssd", 320, 40), ("ssd2host", 660, 40), ("h2d", 700, 20)]
    assert waiting.iteration_ns == plain.iteration_ns + 2 * (20 + 40)
    assert overlapped.iteration_ns == plain.iteration_ns + 40 + 20
    assert peak(waiting) < peak(overlapped) <= peak(plain)
    with pytest.raises(InputError, match="no link goes from the device or the host to memory 'sdd'"):
        simulate(built, where, "checkpoint", parameters={"inputs": "waiting", "to": "sdd"})
    with pytest.raises(
        InputError, match=r"parameters\.to: 'ssd' would have no effect.*; add inputs: overlapped or waiting"
    ):
        simulate(built, where, "checkpoint", parameters={"to": "ssd"})


def test_inputs_of_a_later_micro_batch_are_not_fetched_before_they_exist():
    """Forward and backward run twice; while the first backward ends, the section behind it has not run yet."""
    once = parts([100] * 5, [100] * 5, [10, 20, 20, 40, 50], [2, 2, 1])
    again = {each.id: f"{each.id}'" for each in once.blocks if not each.persistent}
    second = [
        replace(
            each,
            id=f"{each.id}'",
            reads=tuple(again.get(b, b) for b in each.reads),
            writes=tuple(again.get(b, b) for b in each.writes),
        )
        for each in once.kernels
    ]
    more = [replace(each, id=again[each.id], release=None) for each in once.blocks if each.id in again]
    plain = [replace(each, release=None) for each in once.blocks]
    twice = replace(once, kernels=(*once.kernels, *second), blocks=(*plain, *more), saved=())
    result = run(twice, "checkpoint", blocks=["a", "b"], inputs="overlapped")
    copies = [name for name, *_ in work(result) if name.startswith(("in:", "out:"))]
    assert [copies.index(each) for each in ("out:x3", "in:x3", "out:x3'", "in:x3'")] == [0, 1, 2, 3]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_inputs_on_the_host_take_no_more_memory_and_the_time_of_their_copies(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    count = sum(lengths)
    numbers = st.lists(st.integers(1, 50), min_size=count, max_size=count)
    built = parts(data.draw(numbers), data.draw(numbers), data.draw(numbers), lengths)
    blocks = ["abcdefgh"[n] for n in sorted(data.draw(st.sets(st.integers(0, len(lengths) - 1), min_size=1)))]
    bandwidth = data.draw(st.sampled_from([10**8, 10**9, 10**12]))
    plain, waiting, overlapped = (
        run(built, "checkpoint", blocks=blocks, bandwidth=bandwidth, inputs=each)
        for each in ("resident", "waiting", "overlapped")
    )
    copied = waiting.metrics.copied_bytes
    assert copied == overlapped.metrics.copied_bytes and copied["d2h"] == copied["h2d"]
    copies = sum(end - start for name, start, end in work(waiting) if name.startswith(("in:", "out:")))
    assert waiting.iteration_ns == plain.iteration_ns + copies
    assert plain.iteration_ns <= overlapped.iteration_ns <= waiting.iteration_ns
    assert peak(waiting) <= peak(overlapped) <= peak(plain)


# --- sections -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sections", "again"),
    [
        (1, []),  # checkpoint_sequential leaves the last section alone
        (2, ["F1", "F2"]),
        (3, ["F3", "F1"]),
        (4, []),  # layers of one kernel each, whose input alone is saved
        (6, []),
        (0, ["F1", "F2"]),  # modules a and b; b is the last one and would be recomputed immediately
    ],
)
def test_a_number_of_sections_is_cut_as_in_checkpoint_sequential(sections: int, again: list[str]) -> None:
    result = run(SIX, "checkpoint", blocks=sections)
    assert run_again(result.program, SIX) == again


def test_the_note_and_the_listing_show_the_sections():
    """Of three modules the last is left out. The input of a is the resident batch, the input of b the output of F2."""
    tasks = parts([1, 2, 3, 4, 5, 6], [1] * 6, [10, 20, 30, 40, 50, 60], [2, 2, 2])
    result = run(tasks, "checkpoint")
    assert result.program.sections == (Section("a", ("a.1", "a.2"), 0, 1), Section("b", ("b.1", "b.2"), 30, 3))
    assert "sections: 2, modules: a, b; each keeps its inputs, 0 B to 30 B" in result.notes
    assert "section b: b.1, b.2; 30 B held, 3 ns run again" in listing(result.program, TaskGraph.of(tasks)).splitlines()
    assert result.to_dict()["sections"][1] == {"name": "b", "layers": ("b.1", "b.2"), "held_bytes": 30, "rerun_ns": 3}
    assert from_json(to_json(result.program)).sections == result.program.sections


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        (3, "sections: 2, all but the last of 3 of equal numbers of layers: a.1 to a.2, a.3 to b.1; each keeps"),
        (1, "sections: none, of all but the last of 1 of equal numbers of layers; no recomputation"),
        (["b"], "sections: 1, modules as named: b; each keeps its inputs, 40 B"),
    ],
)
def test_the_note_describes_the_choice_of_sections(blocks: int | list[str], expected: str) -> None:
    (note,) = (note for note in run(SIX, "checkpoint", blocks=blocks).notes if note.startswith("sections"))
    assert note.startswith(expected)


def test_the_note_shortens_many_sections_to_the_first_and_the_last():
    tasks = parts([1] * 16, [1] * 16, [10] * 16, [2] * 8)
    (note,) = (note for note in run(tasks, "checkpoint").notes if note.startswith("sections"))
    assert note.startswith("sections: 7, modules: a, b, c, ..., g; each keeps its inputs")


def test_one_section_equals_a_run_without_checkpointing():
    result, plain = run(SIX, "checkpoint", blocks=1), run(SIX, "none")
    assert (result.iteration_ns, peak(result)) == (plain.iteration_ns, peak(plain))


# --- kernels that cannot be recomputed ------------------------------------------------------------------------


def normalized(pure: bool | None, *, saves: bool) -> Trace:
    """A part with a product and a norm, one layer each; backward of the norm reads its statistics or not."""
    stats = " s" if saves else ""
    return trace(
        [
            kernel("product", 5, "x w", "y", layer="a.product"),
            kernel("norm", 7, "y m", f"z m{stats}", layer="a.norm", op="batch_norm", pure=pure),
            kernel("change", 2, "z", "z", layer="a.relu"),
            kernel("head", 3, "z", "l", layer="head"),
            kernel("head-back", 3, "l z", "gz", layer="head", phase=BACKWARD),
            kernel("change-back", 2, "z gz", "gz", layer="a.relu", phase=BACKWARD),
            kernel("norm-back", 7, f"y gz{stats}", "gy", layer="a.norm", phase=BACKWARD),
            kernel("product-back", 5, "x gy", "gw", layer="a.product", phase=BACKWARD),
            kernel("step", 1, "w gw", "w", phase=OPTIMIZER, pure=False),
        ],
        [
            held("x", 1),
            held("w", 2, kind=BlockKind.WEIGHT),
            held("m", 4),
            block("y", 1000),
            block("z", 2000),
            *([block("s", 8)] if saves else []),
            *(block(name, 0) for name in ("l", "gz", "gy", "gw")),
        ],
    )


@pytest.mark.parametrize("pure", [False, None, True])
@pytest.mark.parametrize("saves", [False, True])
def test_a_norm_is_recomputed_even_if_its_purity_is_unknown(pure: bool | None, saves: bool) -> None:
    """PyTorch recomputes everything; the persistent running statistics `m` are not among the recomputed blocks."""
    tasks = normalized(pure, saves=saves)
    result = run(tasks, "checkpoint", blocks=["a"])
    assert run_again(result.program, tasks) == ["product", "norm", "change"]
    assert result.iteration_ns == result.ideal_ns + 5 + 7 + 2
    assert not [note for note in result.notes if "not run again" in note]


def test_batch_statistics_are_recomputed_and_not_saved():
    tasks = normalized(False, saves=True)
    result = run(tasks, "checkpoint", blocks=["a"])
    start = next(start for name, start, _ in work(result) if name == "head-back")
    assert used(result, start) == 1 + 2 + 4 + 2000, "z is read by what is behind the part; y and s are gone"
    start = next(start for name, start, _ in work(result) if name == "change-back")
    assert used(result, start) == 1 + 2 + 4 + 2000 + 1000 + 8


def test_a_kernel_that_changes_its_input_in_place_is_excluded_and_its_output_saved():
    """PyTorch refuses this: the part's input has changed, so it cannot be recomputed."""
    tasks = trace(
        [
            kernel("make", 1, "w", "x", layer="stem"),
            kernel("change", 2, "x", "x", layer="a.1", op="relu_"),
            kernel("double", 4, "x", "y", layer="a.2"),
            kernel("head", 1, "y", "l", layer="head"),
            kernel("head-back", 1, "l y", "gy", layer="head", phase=BACKWARD),
            kernel("double-back", 1, "y gy", "gx", layer="a.2", phase=BACKWARD),
            kernel("change-back", 1, "x gx", "gx", layer="a.1", phase=BACKWARD),
        ],
        [held("w", 1, kind=BlockKind.WEIGHT), *(block(name, 10) for name in ("x", "y", "l", "gy", "gx"))],
    )
    result = run(tasks, "checkpoint", blocks=["a"])
    assert "change" not in run_again(result.program, tasks)
    assert [note for note in result.notes if note.startswith("not run again, 2 ns in all: 1 of relu_, since")]


def test_outputs_of_excluded_kernels_are_held_until_their_section_is_recomputed():
    """`change` cannot be recomputed; `double` can, and reads its mask `m`, which a run without checkpointing releases
    in forward. So w, x and m are held when forward ends, and y too when `double` has been recomputed."""
    tasks = trace(
        [
            kernel("make", 1, "w", "x", layer="stem"),
            kernel("change", 2, "x", "x m", layer="a.1", op="relu_"),
            kernel("double", 4, "x m", "y", layer="a.2"),
            kernel("use", 8, "y", "z", layer="a.3"),
            kernel("head", 1, "z", "l", layer="head"),
            kernel("head-back", 1, "l z", "gz", layer="head", phase=BACKWARD),
            kernel("use-back", 1, "y gz", "gy", layer="a.3", phase=BACKWARD),
            kernel("double-back", 1, "gy", "gx", layer="a.2", phase=BACKWARD),
        ],
        [
            held("w", 1, kind=BlockKind.WEIGHT),
            *(block(name, size) for name, size in (("x", 10), ("m", 100), ("y", 1000))),
            *(block(name, 0) for name in ("z", "l", "gz", "gy", "gx")),
        ],
    )
    result = run(tasks, "checkpoint", blocks=["a"])
    assert run_again(result.program, tasks) == ["double"]
    starts = {name: start for name, start, _ in work(result)}
    assert [used(result, starts[name]) for name in ("head", "again:double", "use-back")] == [111, 1111, 1111]


def test_a_block_held_to_the_end_is_not_recomputed():
    tasks = normalized(True, saves=False)
    held_on = tuple(replace(b, release=RELEASED_AT_END) if b.id == "y" else b for b in tasks.blocks)
    result = run(replace(tasks, blocks=held_on), "checkpoint", blocks=["a"])
    assert run_again(result.program, tasks) == ["norm", "change"]


# --- parameters ---------------------------------------------------------------------------------------------


def test_unknown_and_nested_module_names_are_reported_together():
    with pytest.raises(InputError) as caught:
        run(SIX, "checkpoint", blocks=["a", "a.1", "bb", "b", "b"])
    message = str(caught.value)
    assert "'a.1' lies in 'a'" in message and "is 'bb' or lies in it" in message and "'b' is there twice" in message
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("sections", [-1, 7])
def test_more_sections_than_layers_are_refused(sections: int) -> None:
    with pytest.raises(InputError, match=r"sections of 6 layers.*0 to 6"):
        run(SIX, "checkpoint", blocks=sections)


def test_blocks_may_be_a_list_or_a_tuple():
    assert run(SIX, "checkpoint", blocks=["a"]).program == run(SIX, "checkpoint", blocks=("a",)).program


def test_layers_are_derived_if_the_trace_has_none():
    built = chain([1, 2, 3, 4], [1, 2, 3, 4], [10, 20, 30, 40])
    bare = replace(built, kernels=tuple(replace(k, layer=None) for k in built.kernels))
    assert run(bare, "checkpoint", blocks=2).iteration_ns > 20


# --- a recording --------------------------------------------------------------------------------------------


def test_a_recorded_network_has_the_exact_time_and_peak_memory():
    """Three stages of three blocks each, with 18 batch norms and their counters."""
    tasks = load_trace("resnet20-cifar-cpu")
    blocks = [f"stage{stage}_{number}" for stage in (1, 2, 3) for number in (1, 2, 3)]
    result = run(tasks, "checkpoint", blocks=blocks)
    again = run_again(result.program, tasks)
    assert result.iteration_ns == tasks.compute_ns + sum(k.duration_ns * again.count(k.id) for k in tasks.kernels)
    assert (result.iteration_ns, peak(result), len(again)) == GOLDEN
    assert run(tasks, "checkpoint").program == result.program, "these are the modules that are taken by default"
    assert not [note for note in result.notes if note.startswith("not run again")]


GOLDEN = (151_432_638, 24_551_064, 83)
