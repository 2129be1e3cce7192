"""JSON recordings as files: byte order marks, numbers beyond any limit, unreadable files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from simgpu.errors import InputError
from simgpu.importers import ImportOptions, import_trace
from simgpu.importers.json_stream import items
from tests.importers.kineto_files import small_run


def spoilt(path: Path, key: str, number: str) -> Path:
    """The small profile with another number in its first kernel."""
    profile, _ = small_run()
    kernel = next(event for event in profile.events if event["cat"] == "kernel")
    (kernel if key in kernel else kernel["args"])[key] = "HERE"
    path.write_text(profile.text().replace('"HERE"', number))
    return path


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    profile, recorded = small_run()
    plain, marked = tmp_path / "net.json", tmp_path / "marked" / "net.json"
    marked.parent.mkdir()
    profile.write(plain)
    marked.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes())
    assert import_trace(marked) == import_trace(plain)
    recorded.write(marked.with_name("graph.json"))
    assert import_trace(marked.parent)[1] == "PyTorch profile joined with an execution trace"


@pytest.mark.parametrize("digits", [4301, 300_000])
@pytest.mark.parametrize("before", [0, 1 << 16, (1 << 16) - 1500])
def test_a_number_that_python_does_not_convert(tmp_path, digits, before):
    """Wherever it lies in the pieces by which the file is read."""
    path = tmp_path / "net.json"
    path.write_text(" " * before + '{"events": [' + "9" * digits + "]}")
    with pytest.raises(InputError, match=r"net\.json: contains a number of more than 1000 digits; it is damaged"):
        list(items(path, "events"))


def test_an_exponent_beyond_any_use(tmp_path):
    with pytest.raises(InputError, match=r"item 14 of traceEvents: contains a number whose exponent is out of range"):
        import_trace(spoilt(tmp_path / "net.json", "dur", "1e9999999999999999999"))


@pytest.mark.parametrize("number", [10**30, 10**900, -(10**30)])
def test_times_beyond_any_clock(tmp_path, number):
    with pytest.raises(InputError, match=r"\(split\): its ts is .* microseconds, out of range"):
        import_trace(spoilt(tmp_path / "net.json", "ts", str(number)))


@pytest.mark.parametrize(
    ("head", "reported"),
    [
        ({"deviceProperties": 5}, "deviceProperties: 5 is not a list of GPUs"),
        ({"deviceProperties": [{"name": "A", "id": [1]}]}, r"deviceProperties: the id of 'A' is \[1\], not a number"),
        ({"baseTimeNanoseconds": 10**30}, "baseTimeNanoseconds: 1000000000000000000000000000000 is not a time"),
        ({"baseTimeNanoseconds": "noon"}, "baseTimeNanoseconds: 'noon' is not a time in nanoseconds"),
    ],
)
def test_a_head_that_cannot_be_read(tmp_path, head, reported):
    profile, _ = small_run()
    profile.head |= head
    with pytest.raises(InputError, match=reported):
        import_trace(profile.write(tmp_path / "net.json"))


@pytest.mark.parametrize(("key", "value"), [("pid", [1]), ("tid", {"a": 1}), ("cat", [1])])
def test_an_event_with_a_list_for_a_name(tmp_path, key, value):
    profile, _ = small_run()
    profile.events[1][key] = value
    with pytest.raises(InputError, match=rf"event 2 \(aten::linear\): its {key} is "):
        import_trace(profile.write(tmp_path / "net.json"))


@pytest.mark.parametrize("repeated", [1, 500])
def test_version_after_the_events_is_reported(tmp_path, repeated):
    profile, _ = small_run()
    events = profile.events * repeated
    path = tmp_path / "net.json"
    path.write_text(json.dumps({"traceEvents": events, "schemaVersion": 1}))
    with pytest.raises(InputError, match=r"has no schemaVersion before its events, .*; put it first, .* jq"):
        import_trace(path)


def test_unreadable_file_is_reported(tmp_path, monkeypatch):
    path = small_run()[0].write(tmp_path / "net.json")

    def denied(*_args, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("simgpu.io.input_files.os.open", denied)
    with pytest.raises(InputError, match=r"net\.json: cannot be read: Permission denied; check the path and its"):
        import_trace(path)


def test_unreadable_execution_trace_is_reported(tmp_path, monkeypatch):
    profile, recorded = small_run()
    path, graph = profile.write(tmp_path / "net.json"), recorded.write(tmp_path / "graph.json")
    plainly = os.open

    def denied(file, *args, **options):
        if file == graph:
            raise PermissionError(13, "Permission denied")
        return plainly(file, *args, **options)

    monkeypatch.setattr("simgpu.io.input_files.os.open", denied)
    with pytest.raises(InputError, match=r"graph\.json: cannot be read: Permission denied; check the path and its"):
        import_trace(path, ImportOptions(execution_trace=graph))
