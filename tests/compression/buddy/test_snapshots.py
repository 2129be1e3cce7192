"""Which files are allocations and snapshots, how they are read, and errors for other files."""

from __future__ import annotations

import os
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.compression.buddy import snapshots as module
from simgpu.compression.buddy.histograms import trace_allocations, trace_histograms, trace_snapshots
from simgpu.compression.buddy.snapshots import Seen, Snapshots, classes_of, collect, take_snapshots
from simgpu.compression.buddy.sources import read_snapshots
from simgpu.compression.buddy.stored import load_entries, save_entries
from simgpu.compression.codecs.entries import ENTRY_SIZES, histogram, size_classes
from simgpu.errors import InputError
from simgpu.trace.chain import chain
from simgpu.trace.folder import write_trace
from simgpu.trace.model import CompressedSize, Trace

ZEROS = np.zeros(320, np.float32)
COUNT = np.arange(320, dtype=np.int32)
NOISE = np.random.default_rng(5).integers(0, 2**31, 320, dtype=np.int32)


def save(path: Path, array: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)
    return path


def histograms_of(snapshots: Snapshots) -> dict[str, dict[str, tuple[int, ...]]]:
    """The number of entries of each size by snapshot and allocation."""
    return {
        label: {each.name: each.snapshots[0] for each in snapshots.in_snapshot(number).values()}
        for number, label in enumerate(snapshots.labels)
    }


def sizes(array: np.ndarray[Any, Any]) -> tuple[int, ...]:
    return histogram(size_classes(array))


def problems(*paths: Path) -> list[str]:
    with pytest.raises(InputError) as caught:
        read_snapshots(paths)
    return [str(problem) for problem in caught.value.problems]


# --- arrays in memory ---------------------------------------------------------------------------------------


def test_each_mapping_is_a_snapshot_and_allocations_may_differ() -> None:
    result = take_snapshots([{"a": ZEROS}, {"a": COUNT, "b": NOISE}])
    assert histograms_of(result) == {"1": {"a": sizes(ZEROS)}, "2": {"a": sizes(COUNT), "b": sizes(NOISE)}}
    assert (result.bytes, result.entries) == (2560, 20)
    assert histograms_of(take_snapshots({"a": COUNT})) == {"1": {"a": sizes(COUNT)}}


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i1", ">i4", "c16", "?", "S3", "U2", [("x", "f4"), ("id", "i2")]])
@pytest.mark.parametrize("elements", [1, 31, 32, 1000])
def test_every_dtype_is_read_as_its_bytes(dtype: Any, elements: int) -> None:
    raw = np.random.default_rng(1).integers(0, 3, elements * np.dtype(dtype).itemsize, dtype=np.uint8)
    array = raw.view(dtype)
    assert classes_of(array).tolist() == size_classes(raw).tolist()
    assert len(classes_of(array)) == -(-array.nbytes // 128)


def test_a_column_major_array_is_read_in_memory_order() -> None:
    array = np.repeat(NOISE[:64, np.newaxis], 64, axis=1)  # a row compresses, a column does not
    assert classes_of(np.asfortranarray(array)).tolist() == classes_of(np.ascontiguousarray(array.T)).tolist()
    assert classes_of(np.asfortranarray(array)).tolist() != classes_of(array).tolist()


def test_large_arrays_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.concatenate([NOISE, ZEROS.view(np.int32), COUNT])[:957]
    full = classes_of(array)
    monkeypatch.setattr(module, "_CHUNK", 3 * 128)
    assert classes_of(array).tolist() == full.tolist()


def test_values_that_are_not_arrays_are_reported_together() -> None:
    with pytest.raises(InputError) as caught:
        take_snapshots([{"a": "text", "b": np.array([{}])}, {"c": np.empty((0, 4)), "d": ZEROS}])
    assert [str(problem) for problem in caught.value.problems] == [
        "snapshot 1, allocation a: 'text' is no array; give a NumPy array",
        "snapshot 1, allocation b: holds Python objects; give a NumPy array",
        "snapshot 2, allocation c: is empty; give a NumPy array",
    ]


def test_an_allocation_of_changing_size_is_reported() -> None:
    with pytest.raises(InputError) as caught:
        take_snapshots([{"a": ZEROS, "b": ZEROS}, {"a": ZEROS[:1], "b": ZEROS}, {"b": ZEROS[:2]}])
    assert [problem.place for problem in caught.value.problems] == ["allocation a", "allocation b"]
    assert "has 1280 bytes in snapshot 1 and 4 bytes in snapshot 2" in str(caught.value)


@pytest.mark.parametrize("nothing", [[], [{}], [{}, {}]])
def test_a_program_without_allocations_is_an_error(nothing: Any) -> None:
    with pytest.raises(InputError, match="no snapshots of any allocation"):
        take_snapshots(nothing)


# --- files --------------------------------------------------------------------------------------------------


def test_files_with_different_names_are_allocations_and_with_equal_names_snapshots(tmp_path: Path) -> None:
    early_a, early_b = save(tmp_path / "early/a.npy", ZEROS), save(tmp_path / "early/b.npy", COUNT)
    late_a, late_b = save(tmp_path / "late/a.npy", NOISE), save(tmp_path / "late/b.npy", COUNT)
    expected = {"1": {"a": sizes(ZEROS), "b": sizes(COUNT)}, "2": {"a": sizes(NOISE), "b": sizes(COUNT)}}
    assert histograms_of(read_snapshots([early_a, early_b, late_a, late_b])) == expected
    assert histograms_of(read_snapshots([early_a, late_a, early_b, late_b])) == expected


def test_a_folder_of_files_is_one_snapshot(tmp_path: Path) -> None:
    for name in ("b10", "b9", "a"):
        save(tmp_path / "dump" / f"{name}.npy", COUNT)
    (tmp_path / "dump/README.md").write_text("about these")
    result = read_snapshots([tmp_path / "dump"])
    assert result.labels == ("dump",)
    assert [each.name for each in result.allocations] == ["a", "b9", "b10"]


def test_folders_in_a_folder_are_snapshots_in_natural_order(tmp_path: Path) -> None:
    for epoch in (10, 9, 0):
        save(tmp_path / "run" / f"epoch-{epoch}" / "w.npy", COUNT)
    save(tmp_path / "run/epoch-9/grad.npy", ZEROS)
    (tmp_path / "run/.cache").mkdir()
    result = read_snapshots([tmp_path / "run"])
    assert histograms_of(result) == {
        "epoch-0": {"w": sizes(COUNT)},
        "epoch-9": {"w": sizes(COUNT), "grad": sizes(ZEROS)},
        "epoch-10": {"w": sizes(COUNT)},
    }
    assert result.name == "run"


def test_folders_on_the_command_line_are_snapshots_in_that_order(tmp_path: Path) -> None:
    late, early = save(tmp_path / "1/w.npy", COUNT).parent, save(tmp_path / "2/w.npy", ZEROS).parent
    assert histograms_of(read_snapshots([early, late])) == {"2": {"w": sizes(ZEROS)}, "1": {"w": sizes(COUNT)}}


def test_an_archive_is_a_snapshot_or_extends_one_without_its_allocations(tmp_path: Path) -> None:
    np.savez(tmp_path / "weights.npz", w=COUNT)
    np.savez_compressed(tmp_path / "maps.npz", **{"layer1/out": ZEROS, "scalar": np.float64(3)})
    np.savez(tmp_path / "later.npz", w=NOISE)
    result = read_snapshots([tmp_path / f"{name}.npz" for name in ("weights", "maps", "later")])
    together = {"w": sizes(COUNT), "layer1/out": sizes(ZEROS), "scalar": sizes(np.float64(3))}
    assert histograms_of(result) == {"weights": together, "later": {"w": sizes(NOISE)}}


def test_files_with_other_suffixes_are_recognized_by_their_content(tmp_path: Path) -> None:
    save(tmp_path / "a.npy", COUNT).rename(tmp_path / "dump.bin")
    assert histograms_of(read_snapshots([tmp_path / "dump.bin"])) == {"1": {"dump": sizes(COUNT)}}


def test_all_problems_of_files_are_reported_together(tmp_path: Path) -> None:
    fine = save(tmp_path / "fine.npy", COUNT)
    empty = tmp_path / "nothing.npy"
    empty.touch()
    text = tmp_path / "notes.txt"
    text.write_text("not an array")
    objects = tmp_path / "objects.npy"
    np.save(objects, np.array([{}]), allow_pickle=True)
    np.savez(tmp_path / "archive.npz", fine=COUNT, void=np.empty(0))
    cut = save(tmp_path / "cut.npy", COUNT)
    cut.write_bytes(cut.read_bytes()[:-1])
    (tmp_path / "bare").mkdir()
    lines = problems(
        fine,
        tmp_path / "missing.npy",
        empty,
        text,
        objects,
        tmp_path / "archive.npz",
        cut,
        tmp_path / "bare",
        save(tmp_path / "void.npy", np.empty((3, 0))),
        save(tmp_path / "again/fine.npy", ZEROS[:7]),
    )
    assert [line.removeprefix(f"{tmp_path}{os.sep}").split(";")[0] for line in lines] == [
        "missing.npy: no such file or folder",
        "nothing.npy: is empty",
        "notes.txt: is no array",
        "objects.npy: holds Python objects",
        "archive.npz: void: is an empty array",
        "cut.npy: is damaged or was cut off: mmap length is greater than file size",
        "bare: contains no .npy files",
        "void.npy: is an empty array",
        "allocation fine: has 1280 bytes in snapshot 1 and 28 bytes in snapshot 2",
    ]


def test_python_objects_and_foreign_members_in_an_archive_are_reported(tmp_path: Path) -> None:
    np.savez(tmp_path / "objects.npz", fine=COUNT, objects=np.array([{}], object))
    assert problems(tmp_path / "objects.npz")[0].startswith(
        f"{tmp_path / 'objects.npz'}: objects: holds Python objects"
    )
    with zipfile.ZipFile(tmp_path / "other.npz", "w") as archive:
        archive.writestr("notes.txt", "not an array at all")
    assert problems(tmp_path / "other.npz") == [f"{tmp_path / 'other.npz'}: notes.txt: is no array; leave it out"]


def test_a_folder_of_both_files_and_folders_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "run/a.npy", COUNT)
    save(tmp_path / "run/epoch-1/a.npy", COUNT)
    (line,) = problems(tmp_path / "run")
    assert "contains both snapshots (folder epoch-1) and allocations of one (file a.npy)" in line


def test_a_folder_for_a_snapshot_without_arrays_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "run/1/a.npy", COUNT)
    (tmp_path / "run/plots").mkdir()
    (line,) = problems(tmp_path / "run")
    assert line == f"{tmp_path / 'run/plots'}: contains no .npy files; move it elsewhere"


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_damaged_archives_are_reported(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("damaged") / "a.npz"
    np.savez_compressed(path, a=NOISE, b=COUNT)
    raw = bytearray(path.read_bytes())
    at = data.draw(st.integers(4, len(raw) - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(bytes(raw[: data.draw(st.sampled_from([len(raw), at]))]))
    try:
        result = read_snapshots([path])
    except InputError as error:
        assert str(path) in str(error)
    else:
        assert result.labels == ("a",)


# --- stored entries -----------------------------------------------------------------------------------------


@st.composite
def programs(draw: st.DrawFn) -> Snapshots:
    """Random programs: allocations that exist in some snapshots, with entries of any size class."""
    names = draw(
        st.lists(
            st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1),
            min_size=1,
            max_size=4,
            unique=True,
        )
    )
    length = {name: draw(st.integers(1, 2000)) for name in names}
    seen: list[dict[str, Seen]] = []
    for number in range(draw(st.integers(1, 3))):
        there = draw(st.lists(st.sampled_from(names), unique=True)) if number else names
        seen.append({})
        for name in there:
            entries = -(-length[name] // 128)
            classes = draw(st.lists(st.integers(0, len(ENTRY_SIZES) - 1), min_size=entries, max_size=entries))
            seen[-1][name] = Seen(length[name], np.array(classes, np.uint8))
    return collect("entries", [f"time {number}" for number in range(len(seen))], seen, about=draw(st.text("abc ü")))


@settings(deadline=None, max_examples=25)
@given(program=programs())
def test_stored_entries_round_trip(program: Snapshots, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("stored") / "kept.npz"
    save_entries(program, file)
    for result in (load_entries(file), read_snapshots([file])):
        assert result.name == "kept"
        assert (result.labels, result.about, result.allocations) == (program.labels, program.about, program.allocations)
        for each, before in zip(result.observed, program.observed, strict=True):
            assert each.at == before.at
            assert each.classes is not None and before.classes is not None
            assert [row.tolist() for row in each.classes] == [row.tolist() for row in before.classes]


def test_stored_entries_are_reproducible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = take_snapshots([{"a": COUNT, "b": NOISE}])
    save_entries(program, tmp_path / "one.npz")
    monkeypatch.setattr("time.time", lambda: 2e9)
    monkeypatch.setattr("time.localtime", lambda *_: (2033, 5, 18, 3, 33, 20, 2, 138, 0))
    save_entries(program, tmp_path / "two.npz")
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.npz") as archive:
        assert {member.date_time[0] for member in archive.infolist()} == {1980}


def test_stored_entries_are_small(tmp_path: Path) -> None:
    save_entries(take_snapshots({"zeros": np.zeros(2**20)}), tmp_path / "entries.npz")
    assert (tmp_path / "entries.npz").stat().st_size < 2**20 * 8 / 1000


def test_a_folder_with_stored_entries_is_read_as_these(tmp_path: Path) -> None:
    (tmp_path / "recording").mkdir()
    save_entries(take_snapshots([{"a": COUNT}]), tmp_path / "recording/entries.npz")
    result = read_snapshots([tmp_path / "recording"])
    assert (result.name, histograms_of(result)) == ("recording", {"1": {"a": sizes(COUNT)}})


def test_a_file_with_all_snapshots_cannot_be_combined_with_others(tmp_path: Path) -> None:
    save_entries(take_snapshots([{"a": COUNT}]), tmp_path / "entries.npz")
    fine = save(tmp_path / "b/b.npy", COUNT)
    assert [
        "contains all snapshots of a program" in line for line in problems(tmp_path / "entries.npz", fine, tmp_path)
    ] == [
        True,
        True,
    ]


BROKEN = {
    "format": np.array("simgpu.entries/2"),
    "allocations": np.array(["a", "a"]),
    "bytes": np.array([-1], np.int64),
    "seen": np.array([[False]]),
    "classes_0": np.full((1, 10), 8, np.uint8),
    "snapshots": np.array([1]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_inconsistent_stored_entries_are_refused(name: str, tmp_path: Path) -> None:
    file = tmp_path / "entries.npz"
    save_entries(take_snapshots([{"a": COUNT}]), file)
    with np.load(file) as archive:
        arrays = dict(archive.items())
    np.savez(file, **{**arrays, name: BROKEN[name]})
    with pytest.raises(InputError, match=f"{file}: .*; give a file that simgpu wrote"):
        load_entries(file)
    np.savez(file, **{each: array for each, array in arrays.items() if each != name})
    with pytest.raises(InputError, match=f"{file}: has no .*{name}"):
        load_entries(file)


def test_missing_or_damaged_stored_entries_are_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_entries(tmp_path / "entries.npz")
    (tmp_path / "entries.npz").write_bytes(b"PK\3\4 and no more")
    with pytest.raises(InputError, match="is damaged or was cut off"):
        read_snapshots([tmp_path / "entries.npz"])


# --- traces -------------------------------------------------------------------------------------------------


def traced(*rows: tuple[str, int, int, int], **other: Any) -> Trace:
    """A chain of blocks x1 of 300 and x2 of 128 bytes; rows: block, epoch, bytes of an entry, entries."""
    result = tuple(
        CompressedSize(block, epoch, "bpc", "plain", 128, size, entries) for block, epoch, size, entries in rows
    )
    return replace(chain([5, 5], [7, 7], [300, 128]), compressibility=result, **other)


ROWS = (("x1", 0, 0, 2), ("x1", 0, 128, 1), ("x1", 7, 32, 3), ("x2", 7, 16, 1))


def test_the_epochs_of_a_trace_are_snapshots_of_its_blocks(tmp_path: Path) -> None:
    sheet = CompressedSize("x1", 0, "zlib", "nchw", 300, 10, 1)
    trace = traced(*ROWS)
    trace = replace(trace, compressibility=(sheet, *trace.compressibility))
    write_trace(trace, tmp_path / "recorded")
    result = read_snapshots([tmp_path / "recorded"])
    assert histograms_of(result) == {
        "epoch 0": {"x1": (2, 0, 0, 0, 0, 0, 0, 1)},
        "epoch 7": {"x1": (0, 0, 0, 3, 0, 0, 0, 0), "x2": (0, 0, 1, 0, 0, 0, 0, 0)},
    }
    assert (result.name, result.about, result.notes) == ("recorded", trace.info.provenance, ())
    assert all(each.classes is None for each in result.observed)


def test_blocks_without_recorded_sizes_are_counted() -> None:
    result = trace_snapshots(traced(*ROWS[:2]))
    assert result.notes == ("1 of the trace's 5 blocks are not measured (128 B)",)
    assert trace_allocations(traced(*ROWS[:2]))[1].snapshots == ()


def test_entries_stored_with_a_trace_give_their_positions(tmp_path: Path) -> None:
    write_trace(traced(*ROWS), tmp_path / "recorded")
    retained = take_snapshots([{"x1": np.zeros(75, np.float32)}, {"x1": np.ones(75, np.float32)}])
    save_entries(retained, tmp_path / "recorded/entries.npz")
    result = read_snapshots([tmp_path / "recorded"])
    assert (result.name, result.labels, result.observed[0].at) == ("recorded", ("1", "2"), (0, 1))
    assert result.observed[0].classes is not None
    assert result.about == traced().info.provenance


def test_entries_of_unknown_blocks_are_refused(tmp_path: Path) -> None:
    write_trace(traced(*ROWS), tmp_path / "recorded")
    save_entries(take_snapshots([{"x1": COUNT, "y": COUNT}]), tmp_path / "recorded/entries.npz")
    file = tmp_path / "recorded/entries.npz"
    assert problems(tmp_path / "recorded") == [
        f"{file}: allocation x1: has 1280 bytes, but 300 bytes in blocks.csv; put it next to its own trace",
        f"{file}: allocation y: is not a block of this trace; put it next to its own trace",
    ]


def test_a_trace_without_entry_sizes_is_refused_with_the_reason(tmp_path: Path) -> None:
    write_trace(traced(), tmp_path / "recorded")
    (line,) = problems(tmp_path / "recorded")
    assert line.startswith(f"{tmp_path / 'recorded/compressibility.csv'}: has no sizes of memory-")


def test_invalid_entry_histograms_are_reported_together() -> None:
    with pytest.raises(InputError) as caught:
        trace_histograms(traced(("x1", 0, 40, 3), ("x2", 1, 127, 1)))
    assert [problem.what for problem in caught.value.problems] == [
        "40 bytes is not an entry size of bpc",
        "127 bytes is not an entry size of bpc",
    ]
    with pytest.raises(InputError) as caught:
        trace_histograms(traced(("x1", 0, 8, 2), ("x2", 1, 8, 2)))
    assert [problem.what for problem in caught.value.problems] == [
        "counts 2 entries, its 300 bytes have 3",
        "counts 2 entries, its 128 bytes have 1",
    ]
