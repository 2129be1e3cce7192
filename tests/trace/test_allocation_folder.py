"""An allocation trace on disk: round trips, the same bytes, and mistakes reported with their place."""

from __future__ import annotations

import gc
import random
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.explain.allocations import explain_allocations
from simgpu.importers.drafts import printable
from simgpu.importers.snapshot.load import load_snapshot
from simgpu.trace.allocation_check import MOST_BYTES, check_allocations
from simgpu.trace.allocation_folder import FILE, MEMORY_FACTOR, read_allocations, write_allocations
from simgpu.trace.allocations import (
    Allocation,
    AllocationTrace,
    AllocatorAction,
    AllocatorEvent,
    AllocatorMark,
    AllocatorSegment,
    Frame,
    MarkStage,
)
from simgpu.trace.folder import load_trace
from simgpu.trace.model import Origin
from tests.importers.test_snapshot import RECORDED, a_snapshot, real, written

MIB = 2**20
COUNTS = st.integers(0, 2**40)
NAMES = st.text(max_size=12).map(printable)
TEXTS = st.just("") | NAMES
TIMES = st.none() | COUNTS
OTHERS = st.sampled_from(
    [AllocatorAction.OOM, AllocatorAction.SNAPSHOT, AllocatorAction.USER_DEFINED, AllocatorAction.SEGMENT_ALLOC]
)
VALUES = (
    st.booleans() | st.integers(-5, 2**40) | st.floats(allow_nan=False, allow_infinity=False) | st.text("ab: #'\"-")
)


@st.composite
def traces(draw: st.DrawFn) -> AllocationTrace:
    """Any valid allocation trace; its addresses make no sense for an allocator."""
    frames = st.builds(Frame, TEXTS, TEXTS, COUNTS)
    stacks = tuple(map(tuple, draw(st.lists(st.lists(frames, max_size=3), max_size=3))))
    stack = st.none() | st.integers(0, len(stacks) - 1) if stacks else st.none()
    allocations: list[Allocation] = []
    events: list[AllocatorEvent] = []
    open_: list[int] = []

    def allocation() -> int:
        size, block = draw(COUNTS), draw(st.none() | COUNTS)
        address = 2**41 * len(allocations)
        allocations.append(Allocation(size, address, draw(COUNTS), draw(COUNTS), draw(stack), draw(TEXTS), block))
        allocations[-1] = replace(allocations[-1], label=draw(TEXTS), optional=draw(st.booleans()))
        open_.append(len(allocations) - 1)
        return open_[-1]

    for _ in range(draw(st.integers(0, 2))):
        allocation()
    for action in draw(st.lists(st.sampled_from([*AllocatorAction]), max_size=12)):
        index = None
        if action == AllocatorAction.ALLOC:
            index = allocation()
        elif action in (AllocatorAction.FREE_REQUESTED, AllocatorAction.FREE_COMPLETED, AllocatorAction.ANNOTATE):
            if not open_:
                continue
            index = draw(st.sampled_from(open_))
            if action == AllocatorAction.FREE_COMPLETED:
                open_.remove(index)
        events.append(AllocatorEvent(action, index, draw(COUNTS), draw(COUNTS), draw(COUNTS), draw(stack), draw(TIMES)))
    places = sorted(draw(st.lists(st.integers(0, len(events)), max_size=3)))
    marks = tuple(AllocatorMark(at, draw(NAMES), draw(st.sampled_from(MarkStage)), draw(TIMES)) for at in places)
    sides = [
        tuple(
            AllocatorSegment(2**41 * at, draw(COUNTS), draw(COUNTS), draw(st.booleans()), draw(st.booleans()))
            for at in range(draw(st.integers(0, 2)))
        )
        for _ in range(2)
    ]
    given_settings = st.dictionaries(st.text("abc_", min_size=1), VALUES, max_size=3)
    return AllocationTrace(
        draw(NAMES),
        draw(COUNTS),
        draw(NAMES),
        tuple(allocations),
        tuple(events),
        *sides,
        stacks,
        draw(st.none() | given_settings | st.fixed_dictionaries({"inner": given_settings})),
        draw(TIMES),
        marks,
        draw(st.sampled_from(Origin)),
    )


@pytest.mark.slow
@settings(deadline=None)
@given(traces())
def test_a_written_allocation_trace_is_read_equal(
    tmp_path_factory: pytest.TempPathFactory, trace: AllocationTrace
) -> None:
    folder = tmp_path_factory.mktemp("written") / "trace"
    write_allocations(trace, folder)
    assert read_allocations(folder) == trace
    first = {file.name: file.read_bytes() for file in folder.iterdir()}
    write_allocations(read_allocations(folder), folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == first


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED)
def test_a_real_snapshot_is_the_same_from_its_folder(name: str, tmp_path: Path) -> None:
    trace = load_snapshot(real(name))
    write_allocations(trace, tmp_path / "trace")
    size = sum(file.stat().st_size for file in (tmp_path / "trace").iterdir())
    # Cyclic garbage is collected after so many new objects, whoever made them: from here on they are its own.
    gc.collect()
    tracemalloc.start()
    assert load_snapshot(tmp_path / "trace") == trace
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 5 < peak / size <= MEMORY_FACTOR


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_allocations(load_snapshot(written(a_snapshot(), tmp_path / "one.pickle")), tmp_path / "one")
    return tmp_path / "one"


def test_text_of_a_snapshot_that_no_table_can_hold_is_made_plain(tmp_path: Path) -> None:
    snapshot = a_snapshot()
    frame = snapshot["device_traces"][0][1]["frames"][0]
    frame |= {"name": "  a\nlambda\ud800 ", "filename": "dir/\x07.py", "line": -4}
    trace = load_snapshot(written(snapshot, tmp_path / "\t.pickle"))
    assert trace.stacks == ((Frame("a lambda", "dir/ .py", 0),),) and trace.name == "unnamed"
    assert check_allocations(trace) == []


WRONG = {
    "a negative size": ("allocations.csv", ",0,0,0,,,\n", ",-1,0,0,,,\n", "row 2, column stream: '-1' is negative"),
    "an unknown action": ("events.csv", "\nalloc,", "\nallocate,", "'allocate' is not an action; did you mean 'alloc'"),
    "an unknown allocation": ("events.csv", "alloc,1,", "alloc,7,", "7 is not the number of one of the 2 allocations"),
    "no allocation": ("events.csv", "alloc,1,", "alloc,,", "alloc has no allocation; give one for alloc, annotate"),
    "allocated twice": (
        "events.csv",
        "alloc,1,",
        "alloc,0,",
        "allocates allocation 0 at address 0, which is allocated",
    ),
    "freed early": ("events.csv", "alloc,0,", "free_completed,0,", "allocation 0, which is freed; put its events"),
    "a size that no device has": ("events.csv", f",{3 * MIB},", f",{MOST_BYTES + 1},", "not a size that a device can"),
    "an unknown stack": ("events.csv", ",0,0,0\n", ",0,5,0\n", "5 is not the number of one of the 1 stacks"),
    "an unknown frame": ("stacks.csv", "\n0\n", "\n0 4\n", "row 2, column frames: 4 is not the number of one of the 1"),
    "a frame that is no number": ("stacks.csv", "\n0\n", "\nx\n", "'x' is not a list of numbers"),
    "segments out of order": ("segments_after.csv", "\n0,", f"\n{2**50},", "not behind the end of the segment above"),
    "a cut table": ("events.csv", "\nalloc,1", "\nalloc,1\ncut", "the file seems cut off|fields where the header"),
    "a lost row": ("frames.csv", "forward,/home/me/model.py,12\n", "", "frames.csv: is cut off|promises 1 rows"),
    "a misspelt key": (FILE, "gpu: 0", "gpus: 0", "unknown key 'gpus'; did you mean 'gpu'"),
    "a GPU that is no number": (FILE, "gpu: 0", "gpu: first", "'first' is not a whole number"),
    "an unknown origin": (FILE, "origin: imported", "origin: found", "'found' is not an origin; known: imported"),
    "another version": (FILE, "simgpu.allocations/1", "simgpu.allocations/2", "is another version"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_folder_is_refused_with_file_and_place(name: str, folder: Path) -> None:
    file, old, new, message = WRONG[name]
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=message) as error:
        load_snapshot(folder)
    assert file in str(error.value) and str(folder) in str(error.value)


def test_a_misspelt_file_is_refused_and_a_readme_is_not(folder: Path) -> None:
    (folder / "README.md").write_text("A recording.")
    read_allocations(folder)
    (folder / "event.csv").write_text("x")
    with pytest.raises(InputError, match=r"event\.csv: not a file of an allocation trace; did you mean 'events\.csv'"):
        read_allocations(folder)
    with pytest.raises(InputError, match=r"files that are not from an allocation trace, such as 'README\.md'"):
        write_allocations(AllocationTrace("a", 0, "b", (), (), (), ()), folder)


def test_a_trace_that_is_not_valid_is_not_written(tmp_path: Path) -> None:
    wrong = AllocationTrace("a\nb", 0, "c", (Allocation(-1, 0, stack=3),), (), (), ())
    with pytest.raises(InputError, match=r"name: 'a\\nb' is not a name") as error:
        write_allocations(wrong, tmp_path / "wrong")
    assert "allocations[0].size: -1 B is not a size" in str(error.value) and not (tmp_path / "wrong").exists()


def test_a_policy_cannot_run_on_it_and_the_error_says_what_can(folder: Path) -> None:
    with pytest.raises(
        InputError, match="no kernel times and nothing that kernels read; explain it with `simgpu memory"
    ):
        load_trace(folder)


def test_another_gpu_is_refused(folder: Path) -> None:
    assert load_snapshot(folder, 0).gpu == 0
    with pytest.raises(InputError, match="has nothing of GPU 2"):
        load_snapshot(folder, 2)


@pytest.mark.slow
def test_changed_folders_are_explained_or_refused(folder: Path, tmp_path: Path) -> None:
    """Any cell may change to anything: what is read can be explained, and all else is refused without a traceback."""
    draw = random.Random(11)
    files = {file: file.read_text() for file in sorted(folder.iterdir()) if file.suffix == ".csv"}
    explained = 0
    for _ in range(600):
        file = draw.choice(list(files))
        rows = [line.split(",") for line in files[file].splitlines()]
        row = draw.randrange(1, len(rows))
        column = draw.randrange(len(rows[row]))
        others = [other[column] for other in rows[1:] if column < len(other)]
        rows[row][column] = draw.choice(["", "0", "1", "512", str(2**47), str(2**63 - 1), "yes", *others])
        file.write_text("".join(",".join(cells) + "\n" for cells in rows))
        try:
            explain_allocations(load_snapshot(folder))
            explained += 1
        except InputError:
            pass
        file.write_text(files[file])
    assert 100 < explained < 550
