"""Asynchronous offload with a stash and prefetching: small chains by hand, random chains by properties."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.trace.chain import chain
from simgpu.trace.folder import load_trace
from simgpu.trace.model import RELEASED_AT_END, BlockKind, SavedTensor, Trace
from tests.policies.framework_runs import peak, run, work
from tests.semantics.hand_made import BACKWARD, block, held, kernel, trace

#: Four layers of 10 ns each way; x2, x3 and x4 are offloaded, x1 is the batch. A byte takes a nanosecond.
FOUR = chain([10] * 4, [10] * 4, [4] * 4)
SLOW = chain([10] * 4, [10] * 4, [15] * 4)


def copies(trace: Trace, **parameters: object) -> list[tuple[str, int, int]]:
    result = work(run(trace, "async_offload", min_bytes=1, **parameters))
    return [each for each in result if ":" in each[0]]


# --- by hand ------------------------------------------------------------------------------------------------


def test_without_prefetching_backward_waits_for_every_copy():
    """x4 is still in the stash when backward begins; it is used from there and not copied in."""
    assert copies(FOUR, prefetch=0, stash=1) == [
        ("out:x2:saved", 10, 14),
        ("out:x3:saved", 20, 24),
        ("out:x4:saved", 30, 34),
        ("in:x3:saved", 50, 54),
        ("in:x2:saved", 64, 68),
    ]
    assert run(FOUR, "async_offload", min_bytes=1, prefetch=0, stash=1).iteration_ns == 80 + 2 * 4


def test_with_prefetching_copies_overlap_kernels():
    """Using x4 prefetches x3; using x3 prefetches x2."""
    assert copies(FOUR, prefetch=1, stash=1)[3:] == [("in:x3:saved", 40, 44), ("in:x2:saved", 50, 54)]
    assert run(FOUR, "async_offload", min_bytes=1, prefetch=1, stash=1).iteration_ns == 80


def test_with_more_prefetch_ahead_fetches_are_issued_together_and_run_in_turn():
    assert copies(FOUR, prefetch=2, stash=1)[3:] == [("in:x3:saved", 40, 44), ("in:x2:saved", 44, 48)]


def test_compute_waits_for_the_oldest_copy_when_the_stash_is_full():
    """x2's offload ends at 25, when F3 begins; x3's at 40, when F4 begins. x4 is used from the stash."""
    result = run(SLOW, "async_offload", min_bytes=1, prefetch=0, stash=1)
    starts = {name: start for name, start, _ in work(result)}
    assert [starts[f"F{n}"] for n in range(1, 5)] == [0, 10, 25, 40]
    assert copies(SLOW, prefetch=0, stash=1)[:3] == [
        ("out:x2:saved", 10, 25),
        ("out:x3:saved", 25, 40),
        ("out:x4:saved", 40, 55),
    ]
    assert result.iteration_ns == 120


def test_without_a_stash_compute_waits_for_every_copy_out():
    result = run(SLOW, "async_offload", min_bytes=1, prefetch=0, stash=0)
    assert result.iteration_ns == 80 + 3 * 15 + 3 * 15


def test_a_stashed_block_is_released_when_its_copy_out_has_ended():
    """x4 is being copied until 90; backward ends its use at 50. Nothing is fetched: everything fits the stash."""
    slower = chain([10] * 4, [10] * 4, [4, 4, 4, 60])
    result = run(slower, "async_offload", min_bytes=1, prefetch=2, stash=3)
    assert [each for each in work(result) if each[0].startswith("in:")] == []
    starts = {name: start for name, start, _ in work(result)}
    assert starts["B4"] == 40 and starts["B3"] == 90


def test_memory_by_hand():
    """During F3 the batch, x3 and x4 are resident; during B4 the batch, x4 and x3, which is being fetched."""
    assert peak(run(FOUR, "none")) == 16
    assert peak(run(FOUR, "async_offload", min_bytes=1, prefetch=0, stash=0)) == 12
    assert peak(run(FOUR, "async_offload", min_bytes=1, prefetch=1, stash=1)) == 12
    assert peak(run(FOUR, "async_offload", min_bytes=1, prefetch=2, stash=1)) == 16


# --- offloaded blocks --------------------------------------------------------------------------------------------


def shared(release: str = "mix-back") -> Trace:
    """`y` is saved by two operators and as two views; `w` is a weight, `s` is small."""
    saved = (
        SavedTensor("w", 40, packed_after=None, unpacked_before="first-back", released_after=RELEASED_AT_END),
        SavedTensor("y", 60, packed_after="first", unpacked_before="mix-back", released_after="mix"),
        SavedTensor("y", 40, packed_after="first", unpacked_before="mix-back", released_after="mix"),
        SavedTensor("s", 3, packed_after="first", unpacked_before="mix-back", released_after="mix"),
        SavedTensor("y", 100, packed_after="mix", unpacked_before="last-back", released_after="mix"),
        SavedTensor("z", 50, packed_after="mix", unpacked_before="last-back", released_after="last"),
        SavedTensor("u", 50, packed_after="last", unpacked_before="last-back", released_after="last"),
    )
    return trace(
        [
            kernel("first", 10, "w", "y s"),
            kernel("mix", 10, "y s", "z"),
            kernel("last", 10, "z", "u"),
            kernel("last-back", 10, "u z y", "gz", phase=BACKWARD),
            kernel("mix-back", 10, "y s gz", "gy", phase=BACKWARD),
            kernel("first-back", 10, "w gy", "gw", phase=BACKWARD),
        ],
        [
            held("w", 40, kind=BlockKind.WEIGHT),
            block("y", 100, release=release),
            block("s", 3, release="mix-back"),
            block("z", 50, release="last-back"),
            block("u", 50, release="last-back"),
            *(block(name, 0, release="first-back") for name in ("gz", "gy", "gw")),
        ],
        saved=saved,
    )


def test_a_block_saved_twice_is_copied_once_and_weights_and_small_blocks_are_not_copied():
    """A block is fetched for its first saved tensor and lives until the last operator that uses one has ended. That
    operator fetches its saved tensors in the order in which it saved them."""
    result = run(shared(), "async_offload", min_bytes=4, prefetch=0, stash=0)
    assert [each for each in work(result) if ":" in each[0]] == [
        ("out:y:saved", 10, 110),
        ("out:z:saved", 120, 170),
        ("out:u:saved", 180, 230),
        ("in:y:saved", 230, 330),
        ("in:z:saved", 330, 380),
        ("in:u:saved", 380, 430),
    ]
    assert peak(result) == 40 + 100 + 3 + 50 + 50


def test_a_block_held_to_the_end_counts_next_to_its_fetched_copy():
    tasks = shared(RELEASED_AT_END)
    saved = tuple(replace(s, released_after=RELEASED_AT_END) if s.block == "y" else s for s in tasks.saved)
    result = run(replace(tasks, saved=saved), "async_offload", min_bytes=4, prefetch=0, stash=0)
    assert peak(result) == 40 + 100 + 3 + 50 + 50 + 100


def test_a_block_held_to_the_end_may_be_in_the_stash():
    tasks = shared(RELEASED_AT_END)
    saved = tuple(replace(s, released_after=RELEASED_AT_END) if s.block == "y" else s for s in tasks.saved)
    result = run(replace(tasks, saved=saved), "async_offload", min_bytes=4, stash=9)
    assert (
        result.iteration_ns >= 60
        and result.metrics.copied_bytes["h2d"] == 0
        and result.metrics.copied_bytes["d2h"] == 200
    )


def test_the_minimum_size_compares_complete_blocks():
    assert [run(FOUR, "async_offload", min_bytes=n).metrics.copied_bytes["d2h"] for n in (4, 5)] == [12, 0]


# --- in general ---------------------------------------------------------------------------------------------

numbers = st.integers(1, 60)
layers = st.lists(st.tuples(numbers, numbers, numbers), min_size=2, max_size=8)


@settings(max_examples=25, deadline=None)
@given(built=layers, prefetch=st.integers(0, 4), stash=st.integers(0, 4), latency=st.integers(0, 5))
def test_random_chains_match_the_closed_forms(
    built: list[tuple[int, int, int]], prefetch: int, stash: int, latency: int
) -> None:
    """Every feature map is offloaded, all but the last `stash` are fetched, no run is slower than save_on_cpu, and a
    faster link slows no run."""
    forward, backward, sizes = map(list, zip(*built, strict=True))
    tasks = chain(forward, backward, sizes)
    settings_ = {"min_bytes": 1, "prefetch": prefetch, "stash": stash}
    slow, fast = (run(tasks, "async_offload", bandwidth=b * 10**9, latency=latency, **settings_) for b in (1, 3))
    assert slow.metrics.copied_bytes["d2h"] == sum(sizes[1:])
    assert slow.metrics.copied_bytes["h2d"] == sum(sizes[1 : max(len(sizes) - stash, 1)])
    assert slow.ideal_ns <= fast.iteration_ns <= slow.iteration_ns
    assert slow.iteration_ns <= run(tasks, "save_on_cpu", latency=latency).iteration_ns
    if stash == 0 and prefetch == 0:
        assert slow.iteration_ns == slow.ideal_ns + 2 * sum(size + latency for size in sizes[1:])


@settings(max_examples=30, deadline=None)
@given(built=layers)
def test_a_stash_as_large_as_the_network_fetches_nothing(built: list[tuple[int, int, int]]) -> None:
    forward, backward, sizes = map(list, zip(*built, strict=True))
    result = run(chain(forward, backward, sizes), "async_offload", bandwidth=10**18, min_bytes=1, stash=len(sizes))
    assert result.metrics.copied_bytes["h2d"] == 0 and result.iteration_ns <= result.ideal_ns + len(sizes)


def test_negative_parameters_are_reported_together():
    with pytest.raises(InputError) as caught:
        run(FOUR, "async_offload", prefetch=-1, stash=-2, min_bytes=-3)
    assert [p.place for p in caught.value.problems] == [f"parameters.{n}" for n in ("prefetch", "stash", "min_bytes")]


def test_a_recorded_network_has_the_exact_time_and_peak_memory():
    result = run(load_trace("resnet20-cifar-cpu"), "async_offload", bandwidth=12 * 10**9, latency=5000)
    metrics = result.metrics
    assert (result.iteration_ns, peak(result), metrics.copied_bytes["d2h"], metrics.copied_bytes["h2d"]) == GOLDEN


GOLDEN = (110_130_863, 16_209_176, 41_943_040, 39_845_888)
