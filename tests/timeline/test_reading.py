"""A timeline written as tables is read back unchanged, and damage is reported with its row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.timeline.export import write_csv, write_memory_csv, write_parquet
from simgpu.timeline.model import SHARED, MemoryCurve, SpanKind, Timeline
from simgpu.timeline.reading import read_timeline
from tests.timeline.hand_made import curve_of, layered_run, timeline_of

LARGEST = 2**63 - 1
STREAMS = ("compute", "d2h", "h2d", "host", "gpu1.compute", "gpu1.d2h")
#: Whatever a trace may call a tensor: printable, without spaces at its ends.
NAMES = st.text(min_size=1, max_size=8).filter(lambda name: name.isprintable() and name == name.strip())
NUMBERS = st.integers(0, LARGEST)


@st.composite
def curves(draw: st.DrawFn) -> MemoryCurve:
    times = sorted(draw(st.lists(NUMBERS, min_size=1, max_size=4)))
    return curve_of([(time, draw(NUMBERS), draw(NUMBERS)) for time in times], draw(st.none() | NUMBERS))


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Any rows that a timeline may contain, not only those that a machine would write."""
    names = tuple(draw(st.lists(NAMES, unique=True, min_size=1, max_size=4)))
    starts = sorted(draw(st.lists(NUMBERS, max_size=8)))
    count = len(starts)

    def column(values: st.SearchStrategy[int]) -> np.ndarray:
        return np.array(draw(st.lists(values, min_size=count, max_size=count)), dtype=np.int64)

    stream = column(st.integers(0, len(STREAMS) - 1))
    first = draw(curves())
    kind = column(st.integers(0, len(SpanKind) - 1))
    place = {SpanKind.COPY: st.integers(2, 5), SpanKind.STALL_MEMORY: st.sampled_from([0, 1, 6])}
    second = MemoryCurve(first.time_ns, first.used, first.live, first.capacity, "device", 1)
    host, disk = (replace(draw(curves()), memory=name, gpu=SHARED) for name in ("host", "disk"))
    return Timeline(
        streams=STREAMS,
        names=names,
        gpu=np.array([int(STREAMS[at].startswith("gpu1")) for at in stream], dtype=np.int64),
        stream=stream,
        kind=kind,
        resource=np.array([draw(place.get(SpanKind(each), st.just(-1))) for each in kind], dtype=np.int64),
        resources=("device", "host", "d2h", "h2d", "host2disk", "disk2host", "disk"),
        name=column(st.integers(-1, len(names) - 1)),
        start_ns=np.array(starts, dtype=np.int64),
        end_ns=np.array([draw(st.integers(start, LARGEST)) for start in starts], dtype=np.int64),
        bytes=column(NUMBERS),
        cause=column(st.integers(-1, len(STREAMS) - 1)),
        iteration=column(st.integers(0, 2)),
        memories=(first, second, host, *([disk] if len(disk.time_ns) else [])),
        iteration_ends_ns=(1, 2, 3),
    )


def read_again(timeline: Timeline, spans: Path, memory: Path) -> Timeline:
    return read_timeline(
        spans,
        memory,
        iteration_ends_ns=timeline.iteration_ends_ns,
        capacities={curve.memory: curve.capacity for curve in timeline.memories},
    )


def assert_same(read: Timeline, written: Timeline) -> None:
    assert list(read) == list(written)
    assert read.iteration_ends_ns == written.iteration_ends_ns
    for one, other in zip(read.memories, written.memories, strict=True):
        assert (one.memory, one.gpu) == (other.memory, other.gpu)
        assert one.capacity == other.capacity
        for name in ("time_ns", "live", "used", "reserved"):
            first, second = getattr(one, name), getattr(other, name)
            assert (first is None) == (second is None)
            assert first is None or first.tolist() == second.tolist()


@settings(deadline=None, max_examples=25)
@given(timelines())
def test_csv_is_read_back_as_it_was_written(timeline: Timeline) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_csv(timeline, folder / "a.csv")
        write_memory_csv(timeline, folder / "b.csv")
        read = read_again(timeline, folder / "a.csv", folder / "b.csv")
        assert_same(read, timeline)
        write_csv(read, folder / "c.csv")
        assert (folder / "c.csv").read_bytes() == (folder / "a.csv").read_bytes()


def test_reserved_bytes_are_read_back_and_in_the_table(tmp_path: Path) -> None:
    curve = replace(SMALL.memory("device"), reserved=np.array([2**21]))
    timeline = replace(SMALL, memories=(curve, curve_of([(3, 8, 8)], memory="host")))
    write_csv(timeline, tmp_path / "s.csv")
    write_memory_csv(timeline, tmp_path / "m.csv")
    header = "gpu,memory,time_ns,live_bytes,used_bytes,reserved_bytes"
    assert (tmp_path / "m.csv").read_text() == f"{header}\n0,device,0,64,64,2097152\n-1,host,3,8,8,\n"
    assert_same(read_again(timeline, tmp_path / "s.csv", tmp_path / "m.csv"), timeline)
    assert timeline.memory_frame().reserved_bytes.dropna().tolist() == [2**21]
    assert "reserved_bytes" not in SMALL.memory_frame()
    for cell, message in (("", "is empty for device memory"), ("63", "'63' is less than the 64 bytes in use")):
        (tmp_path / "m.csv").write_text(f"{header}\n0,device,0,64,64,{cell}\n")
        with pytest.raises(InputError, match=f"row 2, column reserved_bytes: {message}"):
            read_again(timeline, tmp_path / "s.csv", tmp_path / "m.csv")


def test_parquet_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")
    timeline = layered_run(layers=6)
    write_parquet(timeline, tmp_path / "a.parquet")
    write_memory_csv(timeline, tmp_path / "b.csv")
    assert_same(read_again(timeline, tmp_path / "a.parquet", tmp_path / "b.csv"), timeline)
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and nothing behind it")
    with pytest.raises(InputError, match=r"a\.parquet: not readable as Parquet"):
        read_again(timeline, tmp_path / "a.parquet", tmp_path / "b.csv")


SMALL = timeline_of(
    [
        ("compute", SpanKind.COMPUTE, "conv1", 0, 5),
        ("d2h", "copy_d2h", "x", 1, 9, 64, ""),
        ("compute", SpanKind.STALL_EVENT, "x", 5, 9, 0, "d2h"),
    ],
    [9],
    device=curve_of([(0, 64, 64)]),
)


@pytest.mark.parametrize(
    ("file", "row", "cells", "message"),
    [
        ("s.csv", 2, "0,0,compute,compute,conv1,zero,5,0,", "row 2, column start_ns: 'zero' is not a whole number"),
        ("s.csv", 2, "0,0,compute,compute,conv1,0,-5,0,", "row 2, column end_ns: '-5' is not between 0 and"),
        ("s.csv", 3, "0,0,d2h,copyout,x,1,9,64,", "row 3, column kind: 'copyout' is not a kind of span; did you mean"),
        ("s.csv", 3, "0,0,d2h,copy_d2h,x,1,9", "row 3: 7 fields where the header has 9"),
        ("s.csv", 4, "0,0,compute,stall_event,x,5,9,0,D2H!", "row 4, column cause: 'D2H!' is not a stream name"),
        (
            "s.csv",
            4,
            "0,0,compute,stall_event,x,5,4,0,d2h",
            "row 4, column end_ns: '4' is before the span starts",
        ),
        (
            "s.csv",
            4,
            "0,0,compute,stall_event,x,0,9,0,d2h",
            "row 4, column start_ns: '0' is before the span in",
        ),
        (
            "s.csv",
            4,
            "7,0,compute,stall_event,x,5,9,0,d2h",
            "row 4, column iteration: '7' is not one of the 1",
        ),
        ("s.csv", 1, "iteration,gpu,stream", "row 1: the columns are 'iteration,gpu,stream'; they should be"),
        (
            "m.csv",
            2,
            "0,Device,0,64,64",
            "row 2, column memory: 'Device' is not the name of a memory; did you mean 'device'?",
        ),
        ("m.csv", 2, "-1,device,0,64,64", "row 2, column gpu: '-1' does not go with device memory"),
        ("m.csv", 2, '0,"device,0,64,64', "not readable as CSV"),
        ("m.csv", 3, "0,device,9,0,0\n0,device,5,8,8\n", "row 4, column time_ns: '5' is before the sample"),
        (
            "s.csv",
            3,
            "0,99999999999,d2h,copy_d2h,x,1,9,64,",
            "row 3, column gpu: '99999999999' is not a GPU of this run: no row has GPU 1",
        ),
    ],
)
def test_damaged_tables_are_reported_by_file_row_and_column(
    tmp_path: Path, file: str, row: int, cells: str, message: str
) -> None:
    write_csv(SMALL, tmp_path / "s.csv")
    write_memory_csv(SMALL, tmp_path / "m.csv")
    lines = (tmp_path / file).read_text().split("\n")
    lines[row - 1] = cells
    (tmp_path / file).write_text("\n".join(lines))
    with pytest.raises(InputError) as caught:
        read_again(SMALL, tmp_path / "s.csv", tmp_path / "m.csv")
    assert any(str(problem).startswith(f"{tmp_path / file}: {message}") for problem in caught.value.problems), (
        caught.value
    )


def test_missing_and_truncated_files_are_reported_together(tmp_path: Path) -> None:
    write_csv(SMALL, tmp_path / "s.csv")
    text = (tmp_path / "s.csv").read_text()
    (tmp_path / "s.csv").write_text(text[:-4])
    with pytest.raises(InputError) as caught:
        read_again(SMALL, tmp_path / "s.csv", tmp_path / "m.csv")
    cut = "row 4: the last line does not end in a line break: the file seems cut off; write it again"
    assert caught.value.lines() == [
        f"{tmp_path / 's.csv'}: {cut}",
        f"{tmp_path / 'm.csv'}: no such file; check the path",
    ]
