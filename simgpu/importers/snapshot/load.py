"""PyTorch memory snapshots: pickles of `torch.cuda.memory._dump_snapshot`, or the same as JSON.

A snapshot has the segments and blocks at its end, and what the allocator did before, as far back as its buffer
reached. What was allocated when the buffer begins follows from both. It has no kernels: not how long they take, and not
what they read.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from simgpu.errors import InputError
from simgpu.importers.drafts import printable
from simgpu.importers.quantities import shown
from simgpu.importers.snapshot.fields import Record
from simgpu.importers.snapshot.history import ActiveBlock, history
from simgpu.importers.snapshot.marks import marks
from simgpu.importers.snapshot.stacks import Stacks
from simgpu.io.input_files import first_bytes, read_json
from simgpu.io.pickle_files import read_plain_pickle
from simgpu.trace.allocation_folder import read_allocations
from simgpu.trace.allocations import AllocationTrace, AllocatorSegment
from simgpu.trace.columns import LARGEST

_WHAT = "a PyTorch memory snapshot"
_AGAIN = "write it again with torch.cuda.memory._dump_snapshot"
_TOOL = "PyTorch memory snapshot"


def load_snapshot(path: str | Path, gpu: int | None = None) -> AllocationTrace:
    """What the allocator of one GPU did.

    path: of a snapshot, or of the folder that `simgpu trace import` makes of one. gpu: its number, as in the snapshot;
    None for the only one with memory. Raises `InputError` for a file that is damaged, creates objects, or is no
    snapshot, for one whose events contradict its segments, and if there are several GPUs to choose from.
    """
    path = Path(path)
    if path.is_dir():
        return _of_folder(path, gpu)
    snapshot = _read(path)
    traces = snapshot.items("device_traces")
    records = [Record(each, path, f"segment {number}") for number, each in enumerate(snapshot.items("segments"))]
    chosen = _choose(snapshot, traces, records, gpu)
    stacks = Stacks()
    pools = _Pools()
    segments, blocks = _segments([each for each in records if each.number("device", 0) == chosen], pools, stacks)
    events = traces[chosen] if chosen < len(traces) else ()
    if not isinstance(events, list | tuple):
        raise snapshot.wrong(f"device_traces: {shown(events)} is not a list")
    rows = (Record(each, path, f"event {number} of GPU {chosen}") for number, each in enumerate(events))
    allocations, entries, before = history(rows, segments, blocks, stacks)
    return AllocationTrace(
        name=printable(path.stem),
        gpu=chosen,
        tool=_TOOL,
        allocations=tuple(allocations),
        events=tuple(entries),
        before=tuple(before),
        after=tuple(segments),
        stacks=tuple(stacks.stacks),
        settings=_settings(snapshot),
        marks=marks(snapshot, chosen, entries, stacks.stacks),
    )


def _of_folder(path: Path, gpu: int | None) -> AllocationTrace:
    trace = read_allocations(path)
    if gpu is not None and gpu != trace.gpu:
        raise InputError.single(path, "", f"has nothing of GPU {gpu}", f"leave it out, or choose {trace.gpu}")
    return trace


def is_snapshot(path: Path) -> bool:
    """Whether a file begins like a snapshot; its content is not checked."""
    begin = first_bytes(path, 64)
    return begin[:1] == b"\x80" or (begin.lstrip()[:1] == b"{" and b'"segments"' in begin)


def _read(path: Path) -> Record:
    begin = first_bytes(path, 1, _WHAT)
    value: Any = read_json(path, _WHAT, _AGAIN) if begin in b"{[" and begin else read_plain_pickle(path, _WHAT, _AGAIN)
    if isinstance(value, list):
        what = "is a list of segments only, as torch.cuda.memory_snapshot() returns it, without what happened before"
        raise InputError.single(path, "", what, _AGAIN)
    snapshot = Record(value, path, "")
    missing = [key for key in ("segments", "device_traces") if key not in snapshot]
    if missing:
        raise InputError.single(path, "", f"is not {_WHAT}: it has no {' and no '.join(missing)}", _AGAIN)
    return snapshot


def _choose(snapshot: Record, traces: Any, segments: list[Record], gpu: int | None) -> int:
    """The GPU to import."""
    present = {segment.number("device", 0) for segment in segments}
    present |= {number for number, events in enumerate(traces) if events}
    known = ", ".join(map(str, sorted(present)))
    if not present:
        what = "has neither segments nor events: nothing was allocated, or recording was off"
        raise snapshot.wrong(what + " (torch.cuda.memory._record_memory_history)")
    if gpu is None and len(present) > 1:
        raise InputError.single(snapshot.path, "", f"has several GPUs: {known}", "choose one with --gpu")
    if gpu is not None and gpu not in present:
        raise InputError.single(snapshot.path, "", f"has nothing of GPU {gpu}", f"choose among: {known}")
    return next(iter(present)) if gpu is None else gpu


class _Pools:
    """Numbers private pools from 1; 0 is the default pool."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {(0, 0): 0}

    def of(self, record: Record) -> int:
        id = record.items("segment_pool_id") or (0, 0)
        if len(id) != 2 or not all(isinstance(part, int) for part in id):
            raise record.wrong(f"segment_pool_id: {shown(id)} is not a pair of numbers")
        return self._numbers.setdefault(tuple(id), len(self._numbers))


def _segments(records: list[Record], pools: _Pools, stacks: Stacks) -> tuple[list[AllocatorSegment], list[ActiveBlock]]:
    """The segments by address, and their active blocks."""
    segments = []
    for record in records:
        kind = record.text("segment_type")
        if kind not in ("small", "large"):
            raise record.wrong(f"segment_type: {shown(kind)} is not small or large")
        address, size, stream = record.number("address"), record.bytes("total_size"), record.number("stream")
        expandable = record.get("is_expandable") is True
        segments.append(
            (AllocatorSegment(address, size, stream, kind == "small", expandable, pools.of(record)), record)
        )
    segments.sort(key=lambda pair: pair[0].address)
    for (left, _), (right, record) in pairwise(segments):
        if left.address + left.size > right.address:
            raise record.wrong(f"address {right.address:#x} is inside the segment at {left.address:#x}")
    blocks = [block for segment, record in segments for block in _blocks(segment, record, stacks)]
    return [segment for segment, _ in segments], blocks


def _blocks(segment: AllocatorSegment, record: Record, stacks: Stacks) -> list[ActiveBlock]:
    """The active blocks of a segment. Snapshots of old versions give no addresses: blocks follow one another."""
    found = []
    at, end = segment.address, segment.address + segment.size
    for number, values in enumerate(record.items("blocks")):
        block = Record(values, record.path, f"{record.place}, block {number}")
        size = block.bytes("size")
        if block.number("address", at) != at or at + size > end:
            raise block.wrong("does not begin where the block before it ends, or is outside the segment")
        if block.get("state") != "inactive":
            found.append(ActiveBlock(at, block.bytes("requested_size", size), size, segment, stacks.of(block)))
        at += size
    if at != end:
        raise record.wrong(f"blocks have {at - segment.address} B of the segment's {segment.size} B")
    return found


def _settings(snapshot: Record) -> Mapping[str, object] | None:
    settings = snapshot.get("allocator_settings")
    return _plain(settings, 1) if isinstance(settings, dict) else None


#: Settings that are read, and those within another one; PyTorch has some ten, and 16 intervals of sizes.
_MOST_SETTINGS = 100


def _plain(settings: Mapping[Any, Any], below: int) -> dict[str, object]:
    """Settings by name. below: levels of settings within settings; those of other forms have no effect here."""
    result: dict[str, object] = {}
    for key, value in islice(settings.items(), _MOST_SETTINGS):
        if isinstance(value, dict) and below:
            result[printable(str(key))] = _plain(value, below - 1)
        elif isinstance(value, bool) or (isinstance(value, int | float) and abs(value) <= LARGEST):
            result[printable(str(key))] = value
        elif isinstance(value, str):
            result[printable(str(key))] = printable(value[:_LONGEST_SETTING]) if value.strip() else ""
    return result


_LONGEST_SETTING = 10_000
