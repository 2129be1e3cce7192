"""Damaged and unfit PyTorch profiles: each is refused with a message that names the place and the remedy."""

from __future__ import annotations

import gzip
import json

import pytest

from simgpu.errors import InputError
from simgpu.importers import ImportOptions, import_trace
from tests.importers.kineto_files import Profile, small_run, tensor, write


def refusal(path, **reported):
    with pytest.raises(InputError) as error:
        import_trace(path, ImportOptions(**reported))
    return str(error.value)


def changed(tmp_path, **fields):
    """The small profile with its second kernel changed; a value None takes the field away."""
    profile, _ = small_run(with_memory=False)
    event = [event for event in profile.events if event.get("cat") == "kernel"][1]
    for key, value in fields.items():
        place = event if key in event else event["args"]
        if value is None:
            del place[key]
        else:
            place[key] = value
    return profile.write(tmp_path / "net.json")


@pytest.mark.parametrize("part", [0.3, 0.6, 0.99])
def test_truncated_json_is_reported(tmp_path, part):
    text = small_run()[0].text()
    path = write(tmp_path / "net.json", text[: int(len(text) * part)])
    reported = refusal(path)
    assert (
        "item " in reported
        and "of traceEvents: the JSON ends too early: the file is cut off; record it again" in reported
    )


def test_truncated_gzip_is_reported(tmp_path):
    profile, _ = small_run()
    profile.events *= 100
    full = gzip.compress(profile.text().encode(), compresslevel=0)
    path = tmp_path / "net.json.gz"
    for part, place in ((0.1, "before its first item"), (0.9, "of traceEvents")):
        path.write_bytes(full[: int(len(full) * part)])
        reported = refusal(path)
        assert f"{place}: the gzip file is cut off; record it again" in reported


def test_damaged_gzip_is_reported(tmp_path):
    full = bytearray(gzip.compress(small_run()[0].text().encode() + b" " * 200_000, compresslevel=0))
    full[-8:-4] = b"\0\0\0\0"  # the checksum
    path = tmp_path / "net.json.gz"
    path.write_bytes(bytes(full))
    assert "the gzip file is damaged (CRC check failed" in refusal(path)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "inf"])
def test_numbers_that_json_does_not_know(tmp_path, word):
    text = small_run()[0].text().replace('"dur": 10.5', f'"dur": {word}')
    reported = refusal(write(tmp_path / "net.json", text))
    assert "is not JSON" in reported and "JSON must be UTF-8, without NaN or Infinity" in reported


def test_text_that_is_not_utf8(tmp_path):
    path = tmp_path / "net.json"
    path.write_bytes(small_run()[0].text().encode().replace(b"clamp", b"\xff\xfe"))
    assert "is not JSON (lexical error: invalid bytes in UTF8 string.)" in refusal(path)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"dur": "long"}, "its dur is 'long', not a number of microseconds"),
        ({"dur": True}, "its dur is True, not a number of microseconds"),
        ({"dur": None}, "has no dur"),
        ({"dur": -1}, "its dur is -1, which is negative"),
        ({"dur": -0.001}, "its dur is -0.001, which is negative"),
        ({"ts": "noon"}, "its ts is 'noon', not a number of microseconds"),
        ({"ts": 1e30}, "its ts is 1E+30 microseconds, out of range"),
        ({"correlation": None}, "has no correlation; export the profile again with torch.profiler"),
        ({"correlation": "x"}, "its correlation is 'x', not a whole number"),
        ({"device": None}, "has no device"),
    ],
)
def test_a_kernel_that_cannot_be_read(tmp_path, fields, what):
    reported = refusal(changed(tmp_path, **fields))
    assert f"net.json: event 11 (gemm): {what}" in reported


def test_a_profile_without_kernels(tmp_path):
    profile, _ = small_run()
    profile.events = [event for event in profile.events if event.get("cat") != "kernel"]
    assert "has no GPU kernels; record with ProfilerActivity.CUDA" in refusal(profile.write(tmp_path / "net.json"))


def test_a_profile_without_events(tmp_path):
    assert "has no GPU kernels" in refusal(Profile().write(tmp_path / "net.json"))


def test_kernels_of_two_gpus(tmp_path):
    reported = refusal(changed(tmp_path, device=1))
    assert "has kernels of several GPUs (0, 1); a trace has one GPU: record each rank separately" in reported


def test_a_kernel_that_ends_before_the_one_before_it_on_its_stream(tmp_path):
    profile = Profile()
    profile.kernel(1, 100, 50.5, name="long")
    profile.kernel(2, 110, 20, name="short")
    reported = refusal(profile.write(tmp_path / "net.json"), batch=1)
    assert "event 4 (short): overlaps event 2 (long) on stream 7: it ends 20.5 us earlier" in reported
    assert "record each process and GPU separately" in reported


def test_kernels_that_overlap_on_one_stream_all_the_time(tmp_path):
    profile = Profile()
    for number in range(10):
        profile.kernel(number, 100 + 10 * number, 15, name=f"k{number}")
    reported = refusal(profile.write(tmp_path / "net.json"), batch=1)
    assert "overlaps event 2 (k0) on stream 7: kernels of the stream overlap by 45 us in all" in reported


def test_overlapping_tail_is_accepted_and_noted(tmp_path):
    profile = Profile()
    profile.kernel(1, 100, 100.5)
    profile.kernel(2, 198.25, 10)
    trace, _ = import_trace(profile.write(tmp_path / "net.json"), ImportOptions(batch=1))
    assert [kernel.duration_ns for kernel in trace.kernels] == [100_500, 10_000]
    assert "overlap on their own stream, counted twice: 2.25 us" in trace.info.notes


def test_overlap_on_several_streams_is_accepted(tmp_path):
    profile = Profile()
    profile.kernel(1, 100, 50.5, stream=1)
    profile.kernel(2, 110, 20, stream=2)
    trace, _ = import_trace(profile.write(tmp_path / "net.json"), ImportOptions(batch=1))
    assert [kernel.stream for kernel in trace.kernels] == [0, 1]


@pytest.mark.parametrize(
    ("version", "what"), [(2, "has schemaVersion 2; supported: 1"), ("x", "has schemaVersion 'x'")]
)
def test_another_version_of_the_profile(tmp_path, version, what):
    profile, _ = small_run()
    profile.head["schemaVersion"] = version
    assert what in refusal(profile.write(tmp_path / "net.json"))


def test_an_address_allocated_twice_is_reported(tmp_path):
    profile, _ = small_run()
    profile.memory(60, 4000, 512, 4096)
    reported = refusal(profile.write(tmp_path / "net.json"))
    assert "allocates address 4000, which was allocated before and not freed" in reported


def joined(tmp_path, profile, recorded):
    return refusal(profile.write(tmp_path / "net.json"), execution_trace=recorded.write(tmp_path / "graph.json"))


def test_an_execution_trace_of_another_run(tmp_path):
    profile, recorded = small_run()
    for node in recorded.nodes:
        node["attrs"][0]["value"] += 100
    reported = joined(tmp_path, profile, recorded)
    assert "graph.json: does not match net.json: it contains only 0 of 4 operators that launched kernels" in reported
    assert "use the execution trace of the same run and the same iteration" in reported


def test_an_execution_trace_that_lacks_an_operator(tmp_path):
    profile, recorded = small_run()
    del recorded.nodes[1]
    assert "it contains only 3 of 4 operators that launched kernels" in joined(tmp_path, profile, recorded)


@pytest.mark.parametrize("schema", ["0.9", "2.0.0", "1.7.1"])
def test_another_schema_of_the_execution_trace(tmp_path, schema):
    profile, recorded = small_run()
    recorded.schema = schema
    assert f"graph.json: schema: has schema '{schema}'; supported: 1.0 and 1.1" in joined(tmp_path, profile, recorded)


def test_an_execution_trace_alone(tmp_path):
    reported = refusal(small_run()[1].write(tmp_path / "graph.json"))
    assert "has no times; import the profile of the same run together with this file" in reported
    assert "--execution-trace" in reported


def test_a_profile_given_as_execution_trace(tmp_path):
    path = small_run()[0].write(tmp_path / "net.json")
    assert "is not a PyTorch execution trace" in refusal(path, execution_trace=path)


def test_an_execution_trace_that_is_not_there(tmp_path):
    path = small_run()[0].write(tmp_path / "net.json")
    reported = refusal(path, execution_trace=tmp_path / "none.json")
    assert "none.json: no such file" in reported


def test_an_execution_trace_of_several_gpus(tmp_path):
    profile, recorded = small_run()
    recorded.node("aten::relu", 99, [tensor(50, 51, 4, device="cuda:1")], [])
    assert "graph.json: has tensors on several GPUs (cuda:0, cuda:1)" in joined(tmp_path, profile, recorded)


def test_a_node_that_cannot_be_read(tmp_path):
    profile, recorded = small_run()
    del recorded.nodes[1]["inputs"]
    assert "graph.json: item 2 of nodes: cannot be read (KeyError: 'inputs')" in joined(tmp_path, profile, recorded)


def test_a_truncated_execution_trace(tmp_path):
    profile, recorded = small_run()
    full = recorded.write(tmp_path / "graph.json").read_text()
    graph = write(tmp_path / "graph.json", full[:-40])
    reported = refusal(profile.write(tmp_path / "net.json"), execution_trace=graph)
    assert "graph.json: item 4 of nodes: the JSON ends too early" in reported


def test_execution_trace_is_refused_for_other_formats(tmp_path):
    log = tmp_path / "net-b4.log"
    log.write_text(json.dumps({"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START"}) + "\n")
    reported = refusal(log, execution_trace=tmp_path / "graph.json")
    assert "is a DTR log; an execution trace applies only to a PyTorch profile" in reported
    assert "the number of an iteration applies only to a PyTorch profile" in refusal(log, iteration=3)


def test_a_recording_that_marks_no_iterations(tmp_path):
    path = small_run()[0].write(tmp_path / "net.json")
    assert "marks no iterations, so there is no iteration 3" in refusal(path, iteration=3)


def test_a_profile_without_operators_cannot_be_joined(tmp_path):
    profile, recorded = small_run()
    profile.events = [event for event in profile.events if event.get("cat") != "cpu_op"]
    assert "does not record which operators launched the kernels" in joined(tmp_path, profile, recorded)
