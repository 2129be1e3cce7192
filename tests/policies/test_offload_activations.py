"""torchtune's and TRL's activation offloading: chains by the rules of their source, and what stays on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.trace.chain import chain
from simgpu.trace.folder import load_trace
from simgpu.trace.model import RELEASED_AT_END, BlockKind, SavedTensor, Trace
from tests.policies.framework_runs import parts, peak, run, used, work
from tests.semantics.hand_made import BACKWARD, block, held, kernel, trace

#: Four layers of 10 ns each way; the input of each, 4 B or 15 B, is saved. A byte takes a nanosecond.
FOUR = chain([10] * 4, [10] * 4, [4] * 4)
SLOW = chain([10] * 4, [10] * 4, [15] * 4)


def copies(result_of: Trace, **parameters: object) -> list[tuple[str, int, int]]:
    result = work(run(result_of, "offload_activations", min_offload_size=1, **parameters))
    return [each for each in result if ":" in each[0]]


# --- by hand ------------------------------------------------------------------------------------------------


def test_an_operators_tensors_are_fetched_while_the_operator_before_it_runs():
    """B4 uses x4 from the stash and empties it. x3 and x2 are fetched at once, x1 when B3 has ended."""
    assert copies(FOUR) == [
        *((f"out:x{n}:saved", 10 * (n - 1), 10 * (n - 1) + 4) for n in range(1, 5)),
        ("in:x3:saved", 34, 38),
        ("in:x2:saved", 38, 42),
        ("in:x1:saved", 60, 64),
    ]
    assert run(FOUR, "offload_activations", min_offload_size=1).iteration_ns == 80


def test_compute_waits_for_the_copy_that_is_a_stash_behind():
    """With one tensor in the stash, F2 waits for x1's copy; with two, F3 does."""

    def starts(size: int) -> list[int]:
        ran = work(run(SLOW, "offload_activations", min_offload_size=1, max_fwd_stash_size=size))
        return [next(start for name, start, _ in ran if name == f"F{n}") for n in range(1, 5)]

    assert starts(1) == [0, 15, 30, 45]
    assert starts(2) == [0, 10, 20, 30]
    assert starts(5) == [0, 10, 20, 30]


def test_saved_tensors_that_stay_count_as_consecutive():
    """x2 is too small to be offloaded. It is one of the two of the stash all the same, so F3 waits for x1's copy."""
    small = chain([10] * 4, [10] * 4, [40, 1, 40, 40])
    ran = work(run(small, "offload_activations", min_offload_size=2, max_fwd_stash_size=2))
    assert [next(start for name, start, _ in ran if name == f"F{n}") for n in (2, 3, 4)] == [10, 40, 50]


def test_the_first_operator_of_backward_waits_for_all_offloads_at_its_end():
    """x4's copy ends at 60: B4, from 40 to 50, uses x4 from the stash, and B3 waits for the copy."""
    late = chain([10] * 4, [10] * 4, [1, 1, 1, 30])
    ran = {name: (start, end) for name, start, end in work(run(late, "offload_activations", min_offload_size=1))}
    assert ran["out:x4:saved"] == (30, 60)
    assert ran["B4"] == (40, 50) and ran["in:x3:saved"] == (60, 61) and ran["B3"] == (61, 71)


def test_fetched_tensors_of_two_operators_are_on_the_device_together():
    """While B2 runs, at 61: x1, resident as the batch, x2 and the fetched copy of x1."""
    result = run(FOUR, "offload_activations", min_offload_size=1, max_fwd_stash_size=1)
    assert used(result, 63) == 4 + 4 + 4
    assert used(result, 75) == 4 + 4


def test_on_one_stream_compute_waits_for_every_copy():
    result = run(SLOW, "offload_activations", min_offload_size=1, use_streams=False)
    assert result.iteration_ns == 80 + 4 * 15 + 4 * 15
    assert peak(result) == peak(run(SLOW, "save_on_cpu"))


# --- closed form --------------------------------------------------------------------------------------------


def step_ns(forward: Sequence[int], backward: Sequence[int], sizes: Sequence[int], stash: int) -> int:
    """The step time of a chain by the rules of the source, one byte per nanosecond."""
    compute, copied = 0, [0]
    for k, size in enumerate(sizes):
        compute = max(compute, copied[max(k + 1 - stash, 0)])
        copied.append(max(compute, copied[-1]) + size)
        compute += forward[k]
    last = len(sizes) - 1
    compute = max(compute + backward[last], copied[-1])
    copy, ends = copied[-1], {}
    for k in reversed(range(last)):
        copy = max(copy, ends.get(k + 2, 0)) + sizes[k]
        compute = max(compute, copy) + backward[k]
        ends[k] = compute
    return compute


numbers = st.integers(1, 60)


@settings(max_examples=60, deadline=None)
@given(built=st.lists(st.tuples(numbers, numbers, numbers), min_size=2, max_size=9), stash=st.integers(1, 7))
def test_random_chains_have_the_closed_form_to_the_nanosecond(built: list[tuple[int, int, int]], stash: int) -> None:
    forward, backward, sizes = (list(each) for each in zip(*built, strict=True))
    tasks = chain(forward, backward, sizes)
    result = run(tasks, "offload_activations", min_offload_size=1, max_fwd_stash_size=stash)
    assert result.iteration_ns == step_ns(forward, backward, sizes, stash)
    assert result.metrics.copied_bytes == {"d2h": sum(sizes), "h2d": sum(sizes[:-1])}


@settings(max_examples=15, deadline=None)
@given(built=st.lists(st.tuples(numbers, numbers, numbers), min_size=2, max_size=6))
def test_micro_batches_repeat_the_closed_form(built: list[tuple[int, int, int]]) -> None:
    """Each micro-batch of `accumulate` is a forward and backward of its own, with a stash of its own."""
    forward, backward, sizes = (list(each) for each in zip(*built, strict=True))
    tasks = chain(forward, backward, [2 * size for size in sizes])
    tasks = replace(tasks, info=replace(tasks.info, batch=2))
    inside = {"offload_activations": {"min_offload_size": 1, "max_fwd_stash_size": 2}}
    plain, offloaded = (run(tasks, "accumulate", micro_batches=2, inside=each) for each in ("none", inside))
    halves = [span for span in plain.timeline if span.iteration == 1 and span.label == "compute"]
    count = len(sizes)
    first = [span.end_ns - span.start_ns for span in halves[: 2 * count]]
    expected = step_ns(first[:count], first[count:][::-1], sizes, 2)
    assert offloaded.iteration_ns == 2 * expected + plain.iteration_ns - 2 * sum(first)


# --- what is saved again -----------------------------------------------------------------------------------


def attention(layers: int, *, hidden: int, wide: int) -> Trace:
    """Layers with a hidden state that three projections save, each a tensor of its own, and a wide one saved once."""
    kernels, blocks, saved = [], [held("w", 1, kind=BlockKind.WEIGHT)], []
    back = []
    for n in range(layers):
        x, y, z = f"x{n}", f"y{n}", f"z{n}"
        before = "w" if n == 0 else f"z{n - 1}"
        kernels += [
            kernel(f"norm{n}", 10, before, x, layer=f"layers.{n}.norm"),
            kernel(f"qkv{n}", 30, x, y, layer=f"layers.{n}.qkv"),
            kernel(f"mlp{n}", 60, y, z, layer=f"layers.{n}.mlp"),
        ]
        blocks += [block(name, size, release=f"mlp-back{n}") for name, size in ((y, wide), (z, hidden))]
        blocks.append(block(x, hidden, release=f"qkv-back{n}"))
        saved += [SavedTensor(x, hidden, f"norm{n}", f"qkv-back{n}", released_after=f"qkv{n}") for _ in range(3)] + [
            SavedTensor(y, wide, f"qkv{n}", f"mlp-back{n}", released_after=f"mlp{n}")
        ]
        back += [
            kernel(f"qkv-back{n}", 60, f"{x} gy{n}", f"gx{n}", phase=BACKWARD, layer=f"layers.{n}.qkv"),
            kernel(
                f"mlp-back{n}",
                120,
                f"{y}" + (f" gx{n + 1}" if n + 1 < layers else ""),
                f"gy{n}",
                phase=BACKWARD,
                layer=f"layers.{n}.mlp",
            ),
        ]
        blocks += [block(f"gx{n}", hidden, release=f"mlp-back{n - 1}" if n else f"qkv-back{n}")]
        blocks += [block(f"gy{n}", wide, release=f"qkv-back{n}")]
    released = {f"z{n}": f"norm{n + 1}" if n + 1 < layers else f"mlp{n}" for n in range(layers)}
    blocks = [replace(each, release=released.get(each.id, each.release)) for each in blocks]
    return trace([*kernels, *reversed(back)], blocks, saved=tuple(saved))


def test_torchtune_copies_a_tensor_for_each_operator_that_saves_it_and_trl_once():
    tasks = attention(2, hidden=50, wide=20)
    torchtune, trl = (
        run(tasks, "offload_activations", min_offload_size=1, saved_again=each) for each in ("offloaded", "resident")
    )
    assert torchtune.metrics.copied_bytes["d2h"] == 2 * (3 * 50 + 20)
    assert trl.metrics.copied_bytes["d2h"] == 2 * (50 + 20)
    assert "4 saved again stay on the device, 200 B" in trl.notes


def test_offloading_all_activations_needs_more_memory_than_checkpointing_where_tensors_are_saved_again():
    """TRL keeps the input of the projections of every layer on the device, as large as what checkpointing keeps of it,
    and the stash too. torchtune copies that input three times; compute waits for copies, so memory is bounded."""
    tasks = attention(12, hidden=50, wide=60)
    plain = run(tasks, "none")
    checkpointed = run(tasks, "checkpoint", blocks=[f"layers.{n}" for n in range(12)])
    torchtune, trl = (
        run(tasks, "offload_activations", min_offload_size=1, saved_again=each) for each in ("offloaded", "resident")
    )
    assert peak(torchtune) < peak(checkpointed) < peak(trl) < peak(plain)
    assert torchtune.iteration_ns > trl.iteration_ns > plain.iteration_ns


def test_a_tensor_that_left_the_stash_is_offloaded_again():
    """`early` is saved by the first and the last operator, when its first copy has been dropped."""
    saved = (
        SavedTensor("early", 40, "make", "first-back", released_after="last"),
        *(SavedTensor(f"m{n}", 30, f"mid{n}", f"mid{n}-back", released_after="last") for n in (1, 2)),
        SavedTensor("early", 40, "mid2", "last-back", released_after="last"),
    )
    kernels = [
        kernel("make", 10, "w", "early"),
        kernel("mid1", 10, "early", "m1"),
        kernel("mid2", 10, "m1", "m2"),
        kernel("last", 10, "m2 early", "l"),
        kernel("last-back", 10, "l early", "g3", phase=BACKWARD),
        kernel("mid2-back", 10, "m2 g3", "g2", phase=BACKWARD),
        kernel("mid1-back", 10, "m1 g2", "g1", phase=BACKWARD),
        kernel("first-back", 10, "early g1", "g0", phase=BACKWARD),
    ]
    blocks = [
        held("w", 1, kind=BlockKind.WEIGHT),
        block("early", 40, release="first-back"),
        block("m1", 30, release="mid1-back"),
        block("m2", 30, release="mid2-back"),
        *(block(name, 0) for name in ("l", "g3", "g2", "g1", "g0")),
    ]
    tasks = trace(kernels, blocks, saved=saved)
    for size, copied in ((2, 140), (4, 100)):
        result = run(tasks, "offload_activations", min_offload_size=1, max_fwd_stash_size=size)
        assert result.metrics.copied_bytes["d2h"] == copied


# --- what stays --------------------------------------------------------------------------------------------


def test_weights_and_small_tensors_stay():
    saved = (
        SavedTensor("w", 40, None, "back", released_after=RELEASED_AT_END),
        SavedTensor("x", 40, "make", "back", released_after="use"),
        SavedTensor("s", 39, "make", "back", released_after="use"),
    )
    tasks = trace(
        [
            kernel("make", 10, "w", "x s"),
            kernel("use", 10, "x s", "y"),
            kernel("back", 10, "w x s y", "g", phase=BACKWARD),
        ],
        [
            held("w", 40, kind=BlockKind.WEIGHT),
            block("x", 40, release="back"),
            block("s", 39, release="back"),
            *(block(name, 0) for name in "yg"),
        ],
        saved=saved,
    )
    result = run(tasks, "offload_activations", min_offload_size=40)
    assert [name for name, *_ in work(result) if ":" in name] == ["out:x:saved"]
    assert "1 of 3 saved tensors are offloaded, 40 B" in result.notes


@pytest.mark.parametrize(("head", "copied"), [("auto", 30), ("", 60), ("a", 30), ("a.1", 50)])
def test_saved_tensors_of_the_head_stay(head: str, copied: int) -> None:
    """Module `head` is the output head by its name."""
    built = parts([10] * 4, [10] * 4, [10, 20, 10, 20], [2, 2])
    renamed = tuple(replace(k, layer=(k.layer or "").replace("b.", "head.")) for k in built.kernels)
    tasks = replace(built, kernels=renamed)
    assert run(tasks, "offload_activations", min_offload_size=1, head=head).metrics.copied_bytes["d2h"] == copied


def test_unknown_heads_and_low_numbers_are_reported():
    with pytest.raises(InputError, match="no layer is 'lm_heat'"):
        run(FOUR, "offload_activations", head="lm_heat")
    with pytest.raises(InputError) as caught:
        run(FOUR, "offload_activations", max_fwd_stash_size=0, min_offload_size=-1)
    assert [p.place for p in caught.value.problems] == ["parameters.max_fwd_stash_size", "parameters.min_offload_size"]


def test_a_recorded_network_has_the_exact_time_and_peak_memory():
    result = run(load_trace("resnet20-cifar-cpu"), "offload_activations", bandwidth=12 * 10**9, latency=5000)
    metrics = result.metrics
    assert (result.iteration_ns, peak(result), metrics.copied_bytes["d2h"], metrics.copied_bytes["h2d"]) == GOLDEN


GOLDEN = (110_130_863, 28_928_152, 48_637_184, 48_635_904)
