"""Frames, CSV and Parquet of a timeline: exact rows, reproducible bytes, atomic writes."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import pytest

from simgpu.errors import InputError, MissingExtraError
from simgpu.timeline.export import write_csv, write_memory_csv, write_parquet
from simgpu.timeline.model import SpanKind, Timeline
from simgpu.timeline.perfetto import write_perfetto
from tests.timeline.hand_made import curve_of, layered_run, timeline_of

K = SpanKind
WRITERS = (write_csv, write_memory_csv, write_parquet, write_perfetto)


def small() -> Timeline:
    return timeline_of(
        [
            ("compute", K.COMPUTE, 'conv "a", 3x3', 0, 5),
            ("d2h", "copy_d2h", "übertrag", 0, 8, 64, ""),
            ("compute", K.STALL_EVENT, "übertrag", 5, 8, 0, "d2h"),
            ("compute", K.COMPUTE, "b", 8, 8),
            ("compute", K.COMPUTE, "c", 8, 10),
        ],
        [8, 10],
        device=curve_of([(0, 100, 128), (8, 36, 64)]),
        host=curve_of([(0, 64, 64)], memory="host"),
    )


CSV = """\
iteration,gpu,stream,kind,name,start_ns,end_ns,bytes,cause
0,0,compute,compute,"conv ""a"", 3x3",0,5,0,
0,0,d2h,copy_d2h,übertrag,0,8,64,
0,0,compute,stall_event,übertrag,5,8,0,d2h
1,0,compute,compute,b,8,8,0,
1,0,compute,compute,c,8,10,0,
"""
MEMORY_CSV = """\
gpu,memory,time_ns,live_bytes,used_bytes
0,device,0,100,128
0,device,8,36,64
-1,host,0,64,64
"""


def test_csv_is_exact_to_the_byte(tmp_path: Path) -> None:
    write_csv(small(), tmp_path / "timeline.csv")
    write_memory_csv(small(), tmp_path / "memory.csv")
    assert (tmp_path / "timeline.csv").read_bytes() == CSV.encode()
    assert (tmp_path / "memory.csv").read_bytes() == MEMORY_CSV.encode()


def test_frames_contain_the_same_rows_as_the_csv(tmp_path: Path) -> None:
    write_csv(layered_run(), tmp_path / "timeline.csv")
    write_memory_csv(layered_run(), tmp_path / "memory.csv")
    read = pd.read_csv(tmp_path / "timeline.csv", keep_default_na=False)
    pd.testing.assert_frame_equal(layered_run().frame(), read, check_dtype=False)
    read = pd.read_csv(tmp_path / "memory.csv")
    pd.testing.assert_frame_equal(layered_run().memory_frame(), read, check_dtype=False)


def test_parquet_is_read_back_as_the_same_frame(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    write_parquet(small(), tmp_path / "timeline.parquet")
    read = pd.read_parquet(tmp_path / "timeline.parquet")
    pd.testing.assert_frame_equal(read, small().frame(), check_dtype=False)
    assert read["start_ns"].dtype == "int64"


def test_parquet_without_pyarrow_names_the_package_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pyarrow.*simgpu with its extra 'parquet'"):
        write_parquet(small(), tmp_path / "timeline.parquet")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_timeline_has_all_columns(tmp_path: Path) -> None:
    empty = timeline_of([], [0])
    assert list(empty.frame().columns) == CSV.splitlines()[0].split(",")
    assert list(empty.memory_frame().columns) == MEMORY_CSV.splitlines()[0].split(",")
    write_csv(empty, tmp_path / "timeline.csv")
    assert (tmp_path / "timeline.csv").read_text() == CSV.splitlines()[0] + "\n"


@pytest.mark.parametrize("write", WRITERS)
def test_a_missing_folder_is_named_and_nothing_is_created(write, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent.*cannot be written: No such file"):
        write(small(), tmp_path / "absent" / "timeline.out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("write", WRITERS)
def test_a_folder_at_the_path_of_the_file_is_not_changed(write, tmp_path: Path) -> None:
    (tmp_path / "timeline.out").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        write(small(), tmp_path / "timeline.out")
    assert [path.name for path in tmp_path.iterdir()] == ["timeline.out"]


@pytest.mark.parametrize("write", WRITERS)
def test_a_failed_write_keeps_the_old_file(write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "timeline.out"
    write(small(), target)
    before = target.read_bytes()

    def full(self: Path, other: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError, match="No space left on device"):
        write(layered_run(), target)
    assert target.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["timeline.out"]
