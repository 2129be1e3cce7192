"""A profile joined with the memory snapshot of the same run, against synthetic runs whose truth is known."""

from __future__ import annotations

import json
import pickle
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.importers import ImportOptions, import_trace
from simgpu.importers.kineto.alignment import aligned
from simgpu.importers.snapshot.load import load_snapshot
from simgpu.trace.allocation_folder import write_allocations
from simgpu.trace.model import BlockKind, Trace
from tests.cli.cli_helpers import simgpu
from tests.importers.joined_run import Run
from tests.importers.kineto_files import Profile, small_run


def joined(path: Path, profile: Profile, snapshot: object, **options: object) -> Trace:
    path.mkdir(exist_ok=True)
    (path / "snapshot.pickle").write_bytes(pickle.dumps(snapshot))
    given_options = ImportOptions(snapshot=path / "snapshot.pickle", **options)  # type: ignore[arg-type]
    trace, recognised = import_trace(profile.write(path / "net.json"), given_options)
    assert recognised.startswith("PyTorch profile joined with")
    return trace


def new_blocks(trace: Trace) -> list[tuple[int, tuple[int, ...], int | None]]:
    """As `Run.expected`."""
    place = {kernel.id: number for number, kernel in enumerate(trace.kernels)}
    writers: dict[str, list[int]] = {}
    for number, kernel in enumerate(trace.kernels):
        for block in kernel.writes:
            writers.setdefault(block, []).append(number)
    last = {BlockKind.WORKSPACE: lambda block: max(writers[block.id])}
    return [
        (
            block.bytes,
            tuple(writers.get(block.id, ())),
            last[block.kind](block) if block.kind in last else place.get(block.release or ""),
        )
        for block in trace.blocks
        if not block.persistent
    ]


def held(trace: Trace) -> list[int]:
    return sorted(block.bytes for block in trace.blocks if block.persistent)


@pytest.mark.parametrize("seed", range(8))
def test_blocks_have_requested_sizes_and_true_lifetimes(seed: int, tmp_path: Path) -> None:
    run = Run(seed)
    trace = joined(tmp_path, run.profile(), run.snapshot())
    assert new_blocks(trace) == run.expected()
    assert held(trace) == [700, 4000, 3_000_000]
    begin, end = run.steps[-1]
    inside = sum(begin <= at < end for _, _, at in run.events)
    assert f"Of the profile's {inside} memory events, {inside} match it by address and order." in trace.info.notes
    assert "Which kernels read it is not recorded" in trace.info.notes
    assert trace.info.tool == "PyTorch profiler and memory snapshot"
    assert {block.layer for block in trace.blocks if not block.persistent} == {
        f"net/model.py:{block.size % 50 + 1} forward" for block in run.blocks if begin <= block.at < end
    }


@pytest.mark.parametrize("seed", range(8))
def test_without_memory_events_blocks_are_placed_by_time(seed: int, tmp_path: Path) -> None:
    """Within a microsecond an operator may have begun, a kernel been launched and memory been freed."""
    run = Run(seed)
    trace = joined(tmp_path, run.profile(with_memory=False), run.snapshot())
    exact, found = run.expected(), new_blocks(trace)
    assert [block[:1] for block in found] == [block[:1] for block in exact]
    different = sum(one != other for one, other in zip(exact, found, strict=True))
    assert different <= len(exact) // 3
    assert held(trace) == [700, 4000, 3_000_000]
    assert "placed by their time, which is exact to a microsecond" in trace.info.notes


@pytest.mark.parametrize("seed", range(8))
def test_events_that_one_recording_lacks_are_counted(seed: int, tmp_path: Path) -> None:
    run = Run(seed)
    begin, end = run.steps[-1]
    inside = [number for number, (_, _, at) in enumerate(run.events) if begin <= at < end]
    lost = sorted(random.Random(seed).sample(inside[5:-5], 3))
    trace = joined(tmp_path, run.profile(without=frozenset(lost)), run.snapshot())
    assert "3 events are in the snapshot only; they are placed after the event before them" in trace.info.notes
    assert f"memory events, {len(inside) - 3} match it" in trace.info.notes
    sizes = sorted(size for size, _, _ in run.expected())
    assert sum(size in sizes for size, _, _ in new_blocks(trace)) >= len(sizes) - 3


def test_a_snapshot_that_begins_within_the_iteration_leaves_rounded_sizes(tmp_path: Path) -> None:
    run = Run(3, steps=1)
    first = next(number for number, (_, _, at) in enumerate(run.events) if at > run.steps[0][0]) + 6
    trace = joined(tmp_path, run.profile(), run.snapshot(first))
    assert "6 are in the profile only, with sizes rounded by the allocator" in trace.info.notes
    assert [block[1:] for block in new_blocks(trace)] == [block[1:] for block in run.expected()]
    assert sum(size % 512 == 0 for size, _, _ in new_blocks(trace)) <= 6


@pytest.mark.parametrize("times", [True, False])
def test_of_steps_with_equal_addresses_the_right_one_is_taken(times: bool, tmp_path: Path) -> None:
    """Without times the last: the snapshot is written after the profile ends."""
    run = Run(5, steps=5)
    trace = joined(tmp_path, run.profile(), run.snapshot(times=times), iteration=3 if times else 4)
    assert new_blocks(trace) == run.expected(3 if times else 4)
    way = "the nearest in time" if times else "the last"
    assert f"The snapshot repeats these addresses at 5 places; {way} is taken." in trace.info.notes


def test_a_folder_of_allocations_serves_as_the_snapshot(tmp_path: Path) -> None:
    run = Run(1)
    (tmp_path / "s.pickle").write_bytes(pickle.dumps(run.snapshot()))
    write_allocations(load_snapshot(tmp_path / "s.pickle"), tmp_path / "s")
    run.profile().write(tmp_path / "net.json")
    arguments = ("trace", "import", "--profile", tmp_path / "net.json", "-o")
    first = simgpu(*arguments, tmp_path / "first", tmp_path / "s.pickle")
    assert first.exit_code == 0, first.stderr
    assert "policies  only ideal and none: the tensors that kernels read are not recorded" in first.stdout
    assert simgpu(*arguments, tmp_path / "second", tmp_path / "s").exit_code == 0
    for file in ("trace.yaml", "kernels.csv", "blocks.csv"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()
    done = simgpu("run", "--trace", tmp_path / "first", "--node", "v100", "--policy", "none")
    assert done.exit_code == 0, done.stderr


def test_categories_of_the_snapshot_become_kinds(tmp_path: Path) -> None:
    run = Run(2)
    snapshot = run.snapshot(first=1)
    categories = {3_000_000: "parameter", 700: "Category.OPTIMIZER_STATE"}
    for event in snapshot["device_traces"][0]:
        event["category"] = categories.get(event["size"], "ACTIVATION")
    trace = joined(tmp_path, run.profile(), snapshot)
    kinds = {block.bytes: block.kind for block in trace.blocks if block.persistent}
    assert kinds == {4000: BlockKind.OTHER, 3_000_000: BlockKind.WEIGHT, 700: BlockKind.OPTIMIZER_STATE}


def test_with_an_execution_trace_too_sizes_stay_those_of_its_tensors(tmp_path: Path) -> None:
    profile, recorded = small_run()
    recorded.write(tmp_path / "graph.json")
    events = [
        {"action": "alloc", "addr": 3000, "size": 200, "stream": 0},
        {"action": "alloc", "addr": 9000, "size": 900, "stream": 0},
        {"action": "free_requested", "addr": 9000, "size": 900, "stream": 0},
        {"action": "free_completed", "addr": 9000, "size": 900, "stream": 0},
        {"action": "alloc", "addr": 4000, "size": 70, "stream": 0},
        {"action": "free_requested", "addr": 3000, "size": 200, "stream": 0},
        {"action": "free_completed", "addr": 3000, "size": 200, "stream": 0},
    ]
    blocks = [{"size": 1000, "state": "inactive"}, {"size": 512, "requested_size": 70, "state": "active_allocated"}]
    segment = {"device": 0, "address": 3000, "total_size": 1512, "stream": 0, "segment_type": "small", "blocks": blocks}
    trace = joined(
        tmp_path,
        profile,
        {"segments": [segment], "device_traces": [events]},
        execution_trace=tmp_path / "graph.json",
    )
    sizes = {block.kind: block.bytes for block in trace.blocks}
    assert sizes[BlockKind.ACTIVATION] == 128 and sizes[BlockKind.WEIGHT_GRADIENT] == 64
    assert sizes[BlockKind.OTHER] == 900 or sizes[BlockKind.WORKSPACE] == 900
    assert trace.info.tool == "PyTorch profiler and execution trace and memory snapshot"
    assert "Blocks are the storages of the execution trace." in trace.info.notes and trace.records_reads


def test_a_snapshot_of_another_run_is_refused(tmp_path: Path) -> None:
    run = Run(4)
    with pytest.raises(
        InputError, match=r"does not match net\.json: 0 of [0-9]+ memory events are at the same addresses"
    ):
        joined(tmp_path, run.profile(), run.snapshot(shift=2**30))
    late = run.snapshot()
    for event in late["device_traces"][0]:
        event["time_us"] += 3_600_000_000
    with pytest.raises(InputError, match="the same addresses are allocated 3600 s apart; give the snapshot and the"):
        joined(tmp_path, run.profile(), late)
    with pytest.raises(InputError, match="of 0 allocations during its iteration, 0 are within an operator"):
        joined(tmp_path, run.profile(with_memory=False), late)
    with pytest.raises(
        InputError, match="no memory events: the snapshot has no times; record the profile with profile_m"
    ):
        joined(tmp_path, run.profile(with_memory=False), run.snapshot(times=False))
    other = run.snapshot()
    other["segments"][0]["device"] = 1
    other["device_traces"].insert(0, [])
    with pytest.raises(InputError, match=r"is of GPU 1, and the kernels of net\.json ran on GPU 0; choose the GPU"):
        joined(tmp_path, run.profile(), other)


def test_profile_and_snapshot_are_not_confused(tmp_path: Path) -> None:
    run = Run(0)
    (tmp_path / "s.json").write_text(json.dumps(run.snapshot()))
    profile = run.profile().write(tmp_path / "net.json")
    swapped = simgpu("trace", "import", profile, "--profile", tmp_path / "s.json", "-o", tmp_path / "o")
    assert swapped.exit_code == 2 and "is not a PyTorch memory snapshot; --profile applies" in swapped.stderr
    twice = simgpu("trace", "import", tmp_path / "s.json", "--profile", tmp_path / "s.json", "-o", tmp_path / "o")
    assert twice.exit_code == 2 and "looks like a PyTorch memory snapshot" in twice.stderr


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 30), max_size=80), st.data())
def test_an_alignment_pairs_equal_events_in_order(sequence: list[int], data: st.DataObject) -> None:
    """A part of the sequence with a few events lost is aligned with the whole one."""
    begin = data.draw(st.integers(0, len(sequence)))
    end = data.draw(st.integers(begin, len(sequence)))
    lost = data.draw(st.sets(st.integers(begin, max(end - 1, begin)), max_size=2))
    part = [sequence[place] for place in range(begin, end) if place not in lost]
    pairs, _ = aligned(part, sequence)
    assert all(part[i] == sequence[j] for i, j in pairs)
    assert all(a < c and b < d for (a, b), (c, d) in pairwise(pairs))
    if not lost and part:
        assert len(pairs) == len(part)


def test_long_recordings_of_one_address_are_aligned_in_bounded_time() -> None:
    assert aligned([1] * 20_000, [1] * 50_000).pairs == []
    ascending = list(range(20_000))
    assert len(aligned(ascending[3000:9000], ascending * 2).pairs) == 6000
