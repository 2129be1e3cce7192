"""PyTorch memory snapshots: real ones are reproduced at every address; damaged and hostile ones are refused."""

from __future__ import annotations

import copy
import functools
import json
import operator
import pickle
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.explain.allocations import explain_allocations
from simgpu.importers.snapshot.load import load_snapshot
from simgpu.memory.caching.allocator import CachingAllocator
from simgpu.memory.caching.device import ExclusiveDevice
from simgpu.memory.caching.recorded import reproduce
from simgpu.memory.caching.settings import AllocatorSettings, parse
from simgpu.memory.caching.snapshot import SnapshotRecorder
from simgpu.trace.allocations import AllocatorAction, AllocatorMark, Frame, MarkStage
from tests.memory.test_caching import CALLS, SETTINGS

MIB = 2**20
SNAPSHOTS = Path(__file__).parents[3] / "shared" / "data" / "memory-snapshots"

#: By recording: allocations, segments that were allocated, and the peaks of allocated and reserved memory, bytes.
RECORDED = {
    "bcrafton_compiled": (2162, 0, 3861684736, 4238344192),
    "charan_small": (3221, 9, 764083200, 937426944),
    "cranberrii_hf_finetune": (3505, 152, 5914094592, 6471811072),
    "kkaitlyn_ctx128_fullstep": (6771, 783, 55079000576, 61111009280),
    "wedsonlin_medium_128_training": (6526, 0, 7026606592, 7235174400),
    "wedsonlin_medium_512_training": (7591, 1, 12434494464, 12660506624),
}


def real(name: str) -> Path:
    if not SNAPSHOTS.exists():
        pytest.skip("the snapshots are not next to the repository (../shared/data/memory-snapshots)")
    return SNAPSHOTS / f"{name}.pickle"


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED)
def test_every_address_and_segment_of_a_real_snapshot_is_reproduced(name: str) -> None:
    trace = load_snapshot(real(name))
    run = reproduce(trace)
    allocations, segments, allocated, reserved = RECORDED[name]
    assert run.deviations == []
    assert (run.equal_allocations, run.allocations) == (allocations, allocations)
    assert (run.equal_segments, run.segments) == (segments, segments)
    assert (run.allocator.statistics.allocated_peak, run.allocator.statistics.reserved_peak) == (allocated, reserved)
    held = {trace.allocations[index].address: trace.allocations[index].block_bytes for index in trace.held_after}
    assert {block.address: block.size for block in run.allocator.blocks() if block.active} == held
    assert run.allocator.statistics.reserved == sum(segment.size for segment in trace.after)


# --- made snapshots -------------------------------------------------------------------------------------------


def recorder(options: str = "", total: int | None = None) -> SnapshotRecorder:
    return SnapshotRecorder(CachingAllocator(ExclusiveDevice(total), parse(options)))


def written(document: object, path: Path) -> Path:
    path.write_bytes(pickle.dumps(document))
    return path


@example(
    [("allocate", 64 * MIB, 0), ("allocate", 1, 0), ("allocate", 2 * MIB, 0)],
    parse("expandable_segments:True"),
    64 * MIB,
)
@settings(deadline=None, max_examples=200)
@given(CALLS, SETTINGS, st.none() | st.sampled_from([64 * MIB, 200 * MIB]))
def test_a_written_snapshot_is_read_and_reproduced(
    tmp_path_factory: pytest.TempPathFactory,
    calls: list[tuple[str, int, int]],
    options: AllocatorSettings,
    total: int | None,
) -> None:
    """All actions occur: segments that are mapped and unmapped, memory that runs out, an emptied cache."""
    made = SnapshotRecorder(CachingAllocator(ExclusiveDevice(total), options))
    held = []
    for call, number, stream in calls:
        if call == "allocate":
            block = made.allocate(number, stream)
            held += [block] if block is not None else []
        elif call == "free" and held:
            made.free(held.pop(number % len(held)))
        elif call == "record_stream" and held:
            made.allocator.record_stream(held[number % len(held)], stream)
        elif call == "finish":
            made.finish(number)
        elif call == "empty_cache":
            made.empty_cache()
    document = made.document()
    if not document["device_traces"][0]:
        return
    trace = load_snapshot(written(document, tmp_path_factory.mktemp("made") / "made.pickle"))
    run = reproduce(replace(trace, capacity=total), options)
    assert run.deviations == []
    assert run.equal_allocations == sum(event.action == AllocatorAction.ALLOC for event in trace.events)
    blocks = [(block.address, block.size, block.active) for block in made.allocator.blocks()]
    assert [(block.address, block.size, block.active) for block in run.allocator.blocks()] == blocks


def a_snapshot() -> dict[str, Any]:
    """Two allocations, one of them freed."""
    made = recorder()
    stack = [Frame("forward", "/home/me/model.py", 12)]
    first = made.allocate(3 * MIB, stack=stack)
    made.allocate(700)
    assert first is not None
    made.free(first)
    return made.document()


def test_a_snapshot_as_json_equals_the_pickle(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps(a_snapshot()))
    written(a_snapshot(), tmp_path / "one.pickle")
    assert load_snapshot(tmp_path / "one.json") == load_snapshot(tmp_path / "one.pickle")


def test_a_recording_that_begins_later_has_what_was_allocated_before(tmp_path: Path) -> None:
    whole = a_snapshot()
    whole["device_traces"][0] = whole["device_traces"][0][4:]
    trace = load_snapshot(written(whole, tmp_path / "late.pickle"))
    assert [(each.size, each.block_bytes) for each in trace.allocations] == [(3 * MIB, None), (700, 1024)]
    assert [segment.size for segment in trace.before] == [20 * MIB, 2 * MIB]
    assert reproduce(trace).deviations == []


def test_one_of_several_gpus_is_chosen(tmp_path: Path) -> None:
    both = a_snapshot()
    both["device_traces"] += recorder("").document()["device_traces"]
    second = copy.deepcopy(both["segments"][0]) | {"device": 1}
    both["segments"].append(second | {"blocks": [second["blocks"][0] | {"state": "inactive"}, *second["blocks"][1:]]})
    path = written(both, tmp_path / "two.pickle")
    with pytest.raises(InputError, match="has several GPUs: 0, 1; choose one with --gpu"):
        load_snapshot(path)
    assert load_snapshot(path, 0).gpu == 0
    assert load_snapshot(path, 1).events == ()
    with pytest.raises(InputError, match="has nothing of GPU 2; choose among: 0, 1"):
        load_snapshot(path, 2)


def test_user_defined_events_and_listed_annotations_become_marks(tmp_path: Path) -> None:
    """PyTorch 2.4 puts them among the events; later versions list them apart, for all GPUs, with their times."""
    snapshot = a_snapshot()
    events = snapshot["device_traces"][0]
    for number, event in enumerate(events):
        event["time_us"] = 100 + 10 * number
    frames = [{"name": "START", "filename": "ProfilerStep#3", "line": 0}]
    events.insert(2, {"action": "user_defined", "addr": 0, "size": 0, "stream": 0, "time_us": 115, "frames": frames})
    snapshot["external_annotations"] = [
        {"stage": "START", "name": "forward\n", "device": 0, "time_us": 110},
        {"stage": "END", "name": "forward", "device": 0, "time_us": 130},
        {"stage": "START", "name": "elsewhere", "device": 1, "time_us": 120},
        {"stage": "END", "name": "later", "device": 0, "time_us": 900},
    ]
    trace = load_snapshot(written(snapshot, tmp_path / "marked.pickle"))
    begin, end = MarkStage.BEGIN, MarkStage.END
    assert trace.marks == (
        AllocatorMark(1, "forward", begin, 110),
        AllocatorMark(2, "ProfilerStep#3", begin, 115),
        AllocatorMark(5, "forward", end, 130),
        AllocatorMark(len(trace.events), "later", end, 900),
    )
    assert trace.events[5].time_us == 140
    for event in events:
        del event["time_us"]
    assert [mark.name for mark in load_snapshot(written(snapshot, tmp_path / "marked.pickle")).marks] == [
        "ProfilerStep#3"
    ]


def test_what_a_program_noted_on_an_allocation_is_its_label(tmp_path: Path) -> None:
    """`_set_memory_metadata` before it is allocated, `_annotate_tensor` afterwards, also on what was there before."""
    snapshot = a_snapshot()
    events = snapshot["device_traces"][0]
    first = next(event for event in events if event["action"] == "alloc")
    first["user_metadata"] = "activations"
    note = first | {"action": "annotate", "user_metadata": {"saved": "by tanh"}}
    events.insert(events.index(first) + 1, note)
    events.insert(events.index(first) + 2, note)
    trace = load_snapshot(written(snapshot, tmp_path / "noted.pickle"))
    assert [each.label for each in trace.allocations] == ["activations; {'saved': 'by tanh'}", ""]
    report = explain_allocations(trace)
    assert [(each.where, each.count) for each in report.labels] == [("activations; {'saved': 'by tanh'}", 1)]
    kept = next(event for event in events if event["action"] == "alloc" and event["size"] == 700)
    events.remove(kept)
    for event in [each for each in events if each["action"].startswith("segment")]:
        events.remove(event)
    events.insert(0, kept | {"action": "annotate", "user_metadata": "kept", "size": 1024})
    before = load_snapshot(written(snapshot, tmp_path / "noted.pickle"))
    first_there = before.allocations[0]
    assert (first_there.label, first_there.size, first_there.block_bytes) == ("kept", 700, 1024)
    assert before.begun_before == (0,)


def test_a_note_on_freed_memory_is_refused(tmp_path: Path) -> None:
    snapshot = a_snapshot()
    freed = next(event for event in snapshot["device_traces"][0] if event["action"] == "free_completed")
    snapshot["device_traces"][0].append(freed | {"action": "annotate", "user_metadata": "late"})
    with pytest.raises(InputError, match=r"notes something on address 0x[0-9a-f]+, which is free"):
        load_snapshot(written(snapshot, tmp_path / "noted.pickle"))


def changed(change: Any) -> dict[str, Any]:
    document = copy.deepcopy(a_snapshot())
    change(document)
    return document


WRONG = {
    "no dictionary": ([], "is a list of segments only"),
    "another pickle": ({"state_dict": {}}, "it has no segments and no device_traces"),
    "nothing recorded": ({"segments": [], "device_traces": [[]]}, "has neither segments nor events"),
    "a text for a size": (changed(lambda d: d["device_traces"][0][1].update(size="x")), "event 1 of GPU 0: size: 'x'"),
    "a size that no device has": (
        changed(lambda d: d["device_traces"][0][1].update(size=2**49)),
        "than any device has",
    ),
    "a negative size": (changed(lambda d: d["device_traces"][0][1].update(size=-5)), "size: -5 is not a whole"),
    "an unknown action": (changed(lambda d: d["device_traces"][0][1].update(action="grow")), "'grow' is not known"),
    "no address": (changed(lambda d: d["segments"][0].pop("address")), "segment 0: has no address"),
    "segments that overlap": (changed(lambda d: d["segments"].append(d["segments"][0])), "is inside the segment"),
    "blocks that do not fill": (changed(lambda d: d["segments"][0]["blocks"].pop()), "blocks have .* of the segment's"),
    "an unknown kind": (changed(lambda d: d["segments"][0].update(segment_type="big")), "not small or large"),
    "a missing end": (changed(lambda d: d["device_traces"][0].pop()), "events leave 1 allocations"),
    "allocated twice": (changed(lambda d: d["device_traces"][0].insert(2, d["device_traces"][0][1])), "is allocated"),
    "freed twice": (changed(lambda d: d["device_traces"][0].append(d["device_traces"][0][-1])), "is free"),
    "a segment from nowhere": (
        changed(lambda d: d["device_traces"][0][0].update(addr=64 * MIB)),
        "not there afterwards",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_damaged_snapshot_is_refused_with_its_place(name: str, tmp_path: Path) -> None:
    document, message = WRONG[name]
    with pytest.raises(InputError, match=message):
        load_snapshot(written(document, tmp_path / "wrong.pickle"))


class _Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("executed",))


HOSTILE = {
    "a call": (pickle.dumps(_Harmful()), "would create an object"),
    "a class": (pickle.dumps(Path("x")), "would create an object"),
    "a class in the old protocol": (pickle.dumps(_Harmful(), protocol=0), "is not a pickle"),
    "a large reference": (b"\x80\x04]r\xff\xff\xff\x7f.", "has a damaged reference"),
    "a cut": (pickle.dumps(a_snapshot())[:-200], "is cut off"),
    "text of more bytes than there are": (b"\x80\x04X\xff\xff\xff\x7fab.", "is cut off"),
    "nothing": (b"", "is empty"),
    "no values": (b"\x80\x04.", "is a damaged pickle"),
    "another file": (b"\x89PNG\r\n", "is not a pickle"),
    "a number of many digits": (b"\x80\x04\x8b\xff\xff\xff\x7f", "is not a pickle|would create|instruction"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_is_refused_without_running_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, message = HOSTILE[name]
    (tmp_path / "hostile.pickle").write_bytes(data)
    with pytest.raises(InputError, match=message):
        load_snapshot(tmp_path / "hostile.pickle")
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_lists_that_repeat_one_segment_many_times_cost_little(tmp_path: Path) -> None:
    """Its 200 kB would be 10^10 blocks."""
    block = {"size": 512, "state": "inactive"}
    segment = {"address": 0, "total_size": 512 * 10**5, "stream": 0, "segment_type": "small", "blocks": [block] * 10**5}
    path = written({"segments": [segment] * 10**5, "device_traces": []}, tmp_path / "many.pickle")
    with pytest.raises(InputError, match="is inside the segment"):
        load_snapshot(path)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside dictionaries and lists."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inside in items:
        yield (*path, key)
        yield from places(inside, (*path, key))


@pytest.mark.slow
def test_changed_snapshots_are_explained_or_refused(tmp_path: Path) -> None:
    """One in five still makes sense; the others contradict themselves somewhere."""
    draw = random.Random(24)
    explained = 0
    for number in range(1500):
        made = recorder(draw.choice(["", "expandable_segments:True", "max_split_size_mb:32"]), 200 * MIB)
        held = [
            block
            for size in draw.choices([700, MIB, 3 * MIB, 12 * MIB, 70 * MIB], k=8)
            if (block := made.allocate(size))
        ]
        for block in held[:5]:
            made.free(block)
        document = made.document()
        *way, last = draw.choice(list(places(document)))
        inside = functools.reduce(operator.getitem, way, document)
        value = inside[last]
        inside[last] = draw.choice(
            [0, -1, 2**70, "x", None, [], {}, *([value + 512, value - MIB] if type(value) is int else [])]
        )
        try:
            explain_allocations(load_snapshot(written(document, tmp_path / "changed.pickle")))
            explained += 1
        except InputError as error:
            assert "Traceback" not in str(error), number
    assert 150 < explained < 1350
