"""``simgpu memory``: a snapshot explained, as text and as JSON, and what it refuses."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from simgpu.explain.allocations import explain_allocations
from simgpu.importers.snapshot.load import load_snapshot
from simgpu.memory.caching.allocator import CachingAllocator
from simgpu.memory.caching.device import ExclusiveDevice
from simgpu.memory.caching.settings import parse
from simgpu.memory.caching.snapshot import SnapshotRecorder
from simgpu.trace.allocations import Frame
from tests.cli.cli_helpers import simgpu

MIB = 2**20
#: Blocks that grow a little with each step: no freed block serves the next one.
SIZES = (40, 44, 48)


def growing(path: Path, total: int | None = None, options: str = "") -> Path:
    """A snapshot of a loop that keeps a small tensor of every step, and frees the large one."""
    made = SnapshotRecorder(CachingAllocator(ExclusiveDevice(total), parse(options)))
    for size in SIZES:
        large = made.allocate(size * MIB, stack=[Frame("forward", "/home/me/net/model.py", 12)])
        rest = made.allocate(3 * MIB, stack=[Frame("log", "/home/me/net/train.py", 40)])
        if large is None or rest is None:
            break
        made.free(large)
    path.write_bytes(pickle.dumps(made.document()))
    return path


def test_peaks_holders_and_settings_are_shown(tmp_path: Path) -> None:
    done = simgpu("memory", str(growing(tmp_path / "loop.pickle")))
    assert done.exit_code == 0
    shown = done.stdout
    assert "6 of 6 addresses, 4 of 4 segments" in shown
    assert "peak allocated  57 MiB" in shown
    assert "net/model.py:12 forward" in shown and "net/train.py:40 log" in shown
    assert shown.index("as recorded") < shown.index("expandable_segments:True")


def test_a_capacity_that_does_not_suffice_is_explained(tmp_path: Path) -> None:
    done = simgpu("memory", str(growing(tmp_path / "loop.pickle")), "--capacity", "48MiB", "--json")
    report = json.loads(done.stdout)
    assert report["failure"]["recorded"] is False
    assert report["failure"]["request"] == 3 * MIB
    assert report["state"]["allocated"] + report["state"]["releasable"] + report["state"]["pinned"] <= 48 * MIB


def test_a_recorded_failure_is_explained(tmp_path: Path) -> None:
    done = simgpu("memory", str(growing(tmp_path / "oom.pickle", total=62 * MIB)), "--json")
    report = json.loads(done.stdout)
    failure, state = report["failure"], report["state"]
    assert failure["recorded"] and report["capacity"] == 62 * MIB
    assert state["reserved"] + failure["free"] == 62 * MIB
    trials = {trial["settings"]: trial["failed"] for trial in report["trials"]}
    assert trials["as recorded"] == failure["event"]


def test_settings_to_try_are_given_as_pytorch_reads_them(tmp_path: Path) -> None:
    path = str(growing(tmp_path / "loop.pickle"))
    done = simgpu("memory", path, "--allocator", "max_split_size_mb:64", "--json")
    assert [trial["settings"] for trial in json.loads(done.stdout)["trials"]] == ["as recorded", "max_split_size_mb:64"]
    wrong = simgpu("memory", path, "--allocator", "max_split_size:64")
    assert wrong.exit_code == 2 and "did you mean 'max_split_size_mb'?" in wrong.stderr


@pytest.mark.parametrize("content", [b"", b"not a pickle", b"\x80\x04K\x01."])
def test_other_files_are_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "other.pickle").write_bytes(content)
    done = simgpu("memory", str(tmp_path / "other.pickle"))
    assert done.exit_code == 2 and done.stdout == "" and "Traceback" not in done.stderr


def test_a_figure_shows_memory_above_the_map_of_segments(tmp_path: Path) -> None:
    done = simgpu("memory", str(growing(tmp_path / "oom.pickle", total=62 * MIB)), "--plot", str(tmp_path / "oom.png"))
    assert done.exit_code == 0 and (tmp_path / "oom.png").read_bytes().startswith(b"\x89PNG")
    figure = explain_allocations(load_snapshot(tmp_path / "oom.pickle")).plot()
    upper, lower = figure.axes
    legend = [text.get_text() for axes in (upper, lower) for text in axes.get_legend().get_texts()]
    assert legend[:4] == ["out of memory", "requested", "allocated", "reserved"]
    assert "net/train.py:40 log" in legend
    allocations = sum(event.allocation is not None for event in load_snapshot(tmp_path / "oom.pickle").events)
    assert 0 < len(lower.collections[0].get_paths()) <= allocations


def test_a_figure_shows_the_capacity_and_where_it_does_not_suffice(tmp_path: Path) -> None:
    trace = load_snapshot(growing(tmp_path / "loop.pickle"))
    shown = {}
    for capacity in (48 * MIB, 100 * MIB, 10**12):
        upper, _ = explain_allocations(trace, capacity).plot().axes
        shown[capacity] = {"capacity", "out of memory"} & set(upper.get_legend_handles_labels()[1])
    assert list(shown.values()) == [{"capacity", "out of memory"}, {"capacity"}, set()]


def test_an_imported_snapshot_is_explained_like_the_snapshot(tmp_path: Path) -> None:
    snapshot = growing(tmp_path / "loop.pickle")
    done = simgpu("trace", "import", snapshot, "-o", tmp_path / "allocations")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.endswith(f"to explain it: simgpu memory {tmp_path / 'allocations'}\n")
    assert "no policy can run on it" in done.stdout
    shown = [simgpu("memory", path, "--json").stdout for path in (snapshot, tmp_path / "allocations")]
    assert shown[0] == shown[1] != ""
    again = simgpu("trace", "import", snapshot, "-o", tmp_path / "allocations")
    assert again.exit_code == 0, "the same trace may be written again"
    other = simgpu("trace", "import", growing(tmp_path / "oom.pickle", 62 * MIB), "-o", tmp_path / "allocations")
    assert other.exit_code == 2 and "contains a different trace" in other.stderr
    assert "valid allocation trace; 16 events" in simgpu("trace", "check", tmp_path / "allocations").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("trace", "import", "SNAPSHOT", "-o", "out", "--batch", "4"), "--batch applies to recordings with kernels"),
        (("trace", "import", "SNAPSHOT", "-o", "out", "--gpu", "3"), "has nothing of GPU 3; choose among: 0"),
        (("trace", "import", "FOLDER", "-o", "out"), "is an allocation trace already; use it directly"),
        (("run", "--trace", "FOLDER", "--node", "v100"), "no kernel times and nothing that kernels read"),
        (("trace", "stats", "FOLDER"), "explain it with `simgpu memory"),
        (("memory", "EMPTY"), "is not an allocation trace"),
    ],
)
def test_what_an_allocation_trace_cannot_do_is_said(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    paths = {
        "SNAPSHOT": growing(tmp_path / "loop.pickle"),
        "FOLDER": tmp_path / "allocations",
        "EMPTY": tmp_path / "empty",
    }
    paths["out"] = tmp_path / "out"
    simgpu("trace", "import", paths["SNAPSHOT"], "-o", paths["FOLDER"])
    done = simgpu(*(paths.get(each, each) for each in arguments))
    assert done.exit_code == 2 and message in " ".join(done.stderr.split())


def marked(path: Path, count: int = 1) -> Path:
    """The loop's snapshot with a region around each step, a label on what is kept, and many moments."""
    growing(path)
    snapshot = pickle.loads(path.read_bytes())
    events = snapshot["device_traces"][0]
    for number, event in enumerate(events):
        event["time_us"] = 10 * number
        if event["size"] == 3 * MIB:
            event["user_metadata"] = "kept"
    stages = (("START", 0), ("END", 45))
    snapshot["external_annotations"] = [
        {"stage": stage, "name": f"step {number}", "device": 0, "time_us": 50 * number + time}
        for number in range(count)
        for stage, time in stages
    ]
    path.write_bytes(pickle.dumps(snapshot))
    return path


def test_marked_regions_and_labels_are_shown(tmp_path: Path) -> None:
    done = simgpu("memory", marked(tmp_path / "loop.pickle", 2))
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["step", "0", "0", "to", "4", "43", "MiB", "+3", "MiB"] in lines
    assert ["kept", "9", "MiB", "3"] in lines
    report = json.loads(simgpu("memory", marked(tmp_path / "loop.pickle", 2), "--json").stdout)
    first, second = report["regions"]
    assert (first["name"], first["begin"], first["end"], first["depth"]) == ("step 0", 0, 5, 0)
    assert (first["before"], first["peak"], first["after"]) == (0, 43 * MIB, 3 * MIB)
    assert (second["begin"], second["before"], second["peak"]) == (5, 3 * MIB, 50 * MIB)


def test_of_many_marks_the_longest_are_shown(tmp_path: Path) -> None:
    path = marked(tmp_path / "loop.pickle", 3000)
    shown = simgpu("memory", path).stdout
    assert shown.count("\nstep ") == 8 and "2992 more, shorter" in shown
    figure = explain_allocations(load_snapshot(path)).plot()
    strip, *_ = figure.axes
    assert strip.get_title(loc="right") == "the 40 longest of 3000 marked regions"
    assert len(strip.patches) + len(strip.lines) == 40
