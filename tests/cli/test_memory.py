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


def test_importing_a_snapshot_points_to_this_command(tmp_path: Path) -> None:
    done = simgpu("trace", "import", str(growing(tmp_path / "loop.pickle")), "-o", str(tmp_path / "trace"))
    assert done.exit_code == 2 and "allocations, but no kernels; explain one with: simgpu memory" in done.stderr
