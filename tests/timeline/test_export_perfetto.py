"""The trace-viewer file: valid, complete, exact, and the same bytes every time."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from simgpu.timeline.model import SpanKind, Timeline
from simgpu.timeline.perfetto import write_perfetto
from tests.timeline.hand_made import curve_of, layered_run, timeline_of

K = SpanKind


def events(timeline: Timeline, folder: Path) -> list[dict[str, Any]]:
    write_perfetto(timeline, folder / "trace.json")
    return json.loads((folder / "trace.json").read_text(encoding="utf-8"), parse_float=Decimal)["traceEvents"]


def swaps() -> Timeline:
    """Block x is offloaded and fetched twice, y only offloaded, w only fetched, and v takes zero time."""
    return timeline_of(
        [
            ("d2h", "copy_d2h", "x", 0, 5, 4, ""),
            ("d2h", "copy_d2h", "y", 5, 9, 4, ""),
            ("h2d", "copy_h2d", "x", 6, 9, 4, ""),
            ("h2d", "copy_h2d", "w", 9, 11, 4, ""),
            ("d2h", "copy_d2h", "x", 10, 14, 4, ""),
            ("d2h", "copy_d2h", "v", 14, 14, 0, ""),
            ("h2d", "copy_h2d", "v", 15, 15, 0, ""),
            ("h2d", "stall_device_memory", "x", 15, 1234567),
            ("h2d", "copy_h2d", "x", 1234567, 2000000001, 4, ""),
            ("compute", K.COMPUTE, 'conv "1"', 0, 2000000001),
        ],
        [2000000001],
        device=curve_of([(0, 10, 16), (1234567, 14, 16)], 100),
        host=curve_of([(5, 4, 4)], memory="host"),
    )


def test_times_are_exact_decimal_microseconds(tmp_path: Path) -> None:
    slices = [event for event in events(swaps(), tmp_path) if event["ph"] == "X"]
    assert [(e["ts"] * 1000, e["dur"] * 1000) for e in slices] == [
        (span.start_ns, span.end_ns - span.start_ns) for span in swaps()
    ]
    raw = (tmp_path / "trace.json").read_text()
    assert '"dur":1998765.434' in raw
    assert '"ts":1234.567}' in raw


def test_every_stream_is_a_named_track_of_its_gpu_in_a_fixed_order(tmp_path: Path) -> None:
    result = events(swaps(), tmp_path)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in result if e["name"] == "thread_name"}
    order = {(e["pid"], e["tid"]): e["args"]["sort_index"] for e in result if e["name"] == "thread_sort_index"}
    assert [names[track] for track in sorted(order, key=order.__getitem__)] == ["compute", "d2h", "h2d"]
    assert [e["args"]["name"] for e in result if e["name"] == "process_name"] == ["gpu 0"]
    for event, span in zip([e for e in result if e["ph"] == "X"], swaps(), strict=True):
        assert names[event["pid"], event["tid"]] == span.stream
        assert event["cat"] == span.label


def test_slices_show_bytes_and_stalls_show_their_cause(tmp_path: Path) -> None:
    slices = [event for event in events(swaps(), tmp_path) if event["ph"] == "X"]
    assert {e["name"] for e in slices} == {"x", "y", "w", "v", 'conv "1"', "waits for device memory"}
    stall = next(e for e in slices if e["cat"] == "stall_device_memory")
    assert stall["args"] == {"iteration": 0, "waits_for": "x"}
    copy = next(e for e in slices if e["cat"] == "copy_d2h")
    assert copy["args"] == {"iteration": 0, "bytes": 4}


def test_an_arrow_leads_from_each_copy_out_to_the_next_copy_in_of_its_block(tmp_path: Path) -> None:
    result = events(swaps(), tmp_path)
    starts = {e["id"]: e for e in result if e["ph"] == "s"}
    finishes = {e["id"]: e for e in result if e["ph"] == "f"}
    assert starts.keys() == finishes.keys()
    pairs = [(starts[i]["name"], int(starts[i]["ts"] * 1000), int(finishes[i]["ts"] * 1000)) for i in sorted(starts)]
    assert pairs == [("x", 0, 6), ("x", 10, 1234567)]
    assert all(e["bp"] == "e" for e in finishes.values())
    assert {e["cat"] for e in (*starts.values(), *finishes.values())} == {"offload"}


def test_arrows_end_on_an_open_slice_that_precedes_them_in_the_file(tmp_path: Path) -> None:
    result = events(layered_run(), tmp_path)
    arrows = [(place, e) for place, e in enumerate(result) if e["ph"] in "sf"]
    assert len(arrows) == 2 * 2 * 59
    slices = {(e["tid"], e["ts"]): place for place, e in enumerate(result) if e["ph"] == "X" and e["dur"] > 0}
    for place, arrow in arrows:
        assert slices[arrow["tid"], arrow["ts"]] < place


def test_memory_counters_show_live_and_used_bytes(tmp_path: Path) -> None:
    counters = [(e["name"], int(e["ts"] * 1000), e["args"]) for e in events(swaps(), tmp_path) if e["ph"] == "C"]
    assert counters == [
        ("device memory", 0, {"live": 10, "used": 16}),
        ("device memory", 1234567, {"live": 14, "used": 16}),
        ("host memory", 5, {"live": 4, "used": 4}),
    ]


def test_keys_are_sorted_and_lines_end_in_newlines(tmp_path: Path) -> None:
    write_perfetto(layered_run(), tmp_path / "trace.json")

    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert [key for key, _ in pairs] == sorted(key for key, _ in pairs)
        return dict(pairs)

    text = (tmp_path / "trace.json").read_bytes()
    json.loads(text, object_pairs_hook=check)
    assert b"\r" not in text
    assert text.endswith(b"}\n]}\n")


def test_an_empty_timeline_is_still_a_valid_file(tmp_path: Path) -> None:
    assert [e["name"] for e in events(timeline_of([], [0]), tmp_path)] == ["process_name"]


@pytest.mark.slow
def test_two_processes_write_the_same_bytes(tmp_path: Path) -> None:
    script = (
        "import sys; from tests.timeline.hand_made import layered_run;"
        "from simgpu.timeline.export import write_csv; from simgpu.timeline.perfetto import write_perfetto;"
        "write_perfetto(layered_run(), sys.argv[1] + '/t.json'); write_csv(layered_run(), sys.argv[1] + '/t.csv')"
    )
    root = Path(__file__).parents[2]
    outputs = []
    for seed in ("0", "1"):
        folder = tmp_path / seed
        folder.mkdir()
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        subprocess.run([sys.executable, "-c", script, str(folder)], check=True, cwd=root, env=environment)
        outputs.append([(folder / name).read_bytes() for name in ("t.json", "t.csv")])
    assert outputs[0] == outputs[1]


def test_the_file_and_the_gpu_track_describe_the_run(tmp_path: Path) -> None:
    write_perfetto(swaps(), tmp_path / "trace.json", {"run": 'vdnn "x"', "trace": "recorded on a CPU"})
    result = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    assert result["otherData"] == {"run": 'vdnn "x"', "trace": "recorded on a CPU"}
    labels = [event["args"]["labels"] for event in result["traceEvents"] if event["name"] == "process_labels"]
    assert labels == ['vdnn "x"; recorded on a CPU']
    assert [event for event in result["traceEvents"] if event["name"] != "process_labels"] == json.loads(
        _plain(swaps(), tmp_path)
    )["traceEvents"]


def _plain(timeline: Timeline, folder: Path) -> str:
    write_perfetto(timeline, folder / "plain.json")
    return (folder / "plain.json").read_text(encoding="utf-8")
