"""Chakra traces: both encodings of the same nodes, the rules by which nodes become kernels, damaged files."""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from simgpu.errors import InputError, MissingExtraError
from simgpu.importers import ImportOptions, detect, import_trace, json_stream
from simgpu.io import free_memory
from simgpu.trace.check import check_trace
from simgpu.trace.folder import write_trace
from simgpu.trace.model import Phase, Trace
from tests.importers import chakra_files as files
from tests.importers.chakra_files import Node

COMP, MEM_LOAD, ALL_REDUCE = 4, 2, 7
CPU, GPU = ("is_cpu_op", "bool_val", True), ("is_cpu_op", "bool_val", False)
ONE = ImportOptions(batch=1)


def gpu(number: int, name: str, duration: int, data_deps: list[int] | None = None, **more: Any) -> Node:
    """A kernel of the GPU; stream and other attributes go to `attr`."""
    attr = [GPU, *more.pop("attr", ())]
    named = {"id": number, "name": name, "type": COMP, "data_deps": data_deps or [], "duration_micros": duration}
    return {**named, "attr": attr, **more}


CHAIN = [
    gpu(0, "embed", 5, attr=[("num_ops", "int64_val", 1000), ("tensor_size", "uint64_val", 64)]),
    gpu(1, "matmul fwd", 7, [0], attr=[("stream", "int64_val", 7)]),
    {"id": 2, "name": "launch", "type": COMP, "data_deps": [1], "duration_micros": 90, "attr": [CPU]},
    gpu(3, "matmul bwd", 11, [2], attr=[("stream", "int64_val", 7)]),
    gpu(4, "Adam", 2, [3], attr=[("stream", "int64_val", 20)]),
]


def saved(folder: Path, content: bytes | str, name: str = "net.0.et") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def imported(folder: Path, nodes: list[Node]) -> Trace:
    trace, recognised = import_trace(saved(folder, files.protobuf(nodes)), ONE)
    assert recognised == "Chakra trace"
    assert check_trace(trace) == []
    return trace


def test_compute_nodes_of_the_gpu_become_kernels(tmp_path):
    trace = imported(tmp_path, CHAIN)
    assert [(k.id, k.op, k.phase, k.duration_ns, k.stream, k.flops, k.dram_bytes) for k in trace.kernels] == [
        ("0", "embed", Phase.FORWARD, 5000, 0, 1000, 64),
        ("1", "matmul fwd", Phase.FORWARD, 7000, 1, None, None),
        ("3", "matmul bwd", Phase.BACKWARD, 11000, 1, None, None),
        ("4", "Adam", Phase.OPTIMIZER, 2000, 2, None, None),
    ]
    assert trace.blocks == ()
    assert trace.info.model == "net"


def test_notes_state_what_is_not_recorded(tmp_path):
    notes = imported(tmp_path, CHAIN).info.notes
    assert "Kernels whose phase is not recorded: 1; they count as forward." in notes
    assert "Starts are not recorded" in notes
    assert "Tensors are not recorded, so there are no blocks." in notes
    assert "Dependencies between kernels on different streams are therefore unknown." in notes
    assert "Lifetimes are not recorded." in notes


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_json_and_protobuf_give_the_same_trace(tmp_path, pack):
    first, _ = import_trace(saved(tmp_path, pack(files.protobuf(CHAIN))), ONE)
    second, recognised = import_trace(saved(tmp_path, pack(files.jsonized(CHAIN).encode()), "net.json"), ONE)
    assert recognised == "Chakra trace"
    assert second == first


def test_field_names_of_the_schema_are_read_in_json_too(tmp_path):
    """Protobuf can be reported to keep its names; numbers may be numbers."""
    rows: list[dict[str, Any]] = [{"version": "0.0.4"}, {"name": "a", "type": 4, "duration_micros": 3}]
    rows.append({"id": 1, "name": "b", "type": "COMP_NODE", "data_deps": [0], "duration_micros": "4"})
    trace, _ = import_trace(saved(tmp_path, "\n".join(map(json.dumps, rows))), ONE)
    assert [(kernel.id, kernel.duration_ns) for kernel in trace.kernels] == [("0", 3000), ("1", 4000)]


def test_workload_graph_of_the_feeder(tmp_path):
    graph = [
        {"Id": 0, "Name": "a", "NodeType": 4, "is_cpu_op": False, "runtime": 3, "data_deps": []},
        {"Id": 1, "Name": "b", "NodeType": 4, "is_cpu_op": True, "runtime": 9, "data_deps": [0]},
        {"Id": 2, "Name": "c", "NodeType": 4, "is_cpu_op": False, "runtime": 4, "data_deps": [1]},
    ]
    trace, _ = import_trace(saved(tmp_path, json.dumps({"workload_graph": graph}), "graph.json"), ONE)
    assert [(kernel.op, kernel.duration_ns) for kernel in trace.kernels] == [("a", 3000), ("c", 4000)]


def test_attributes_of_every_kind(tmp_path):
    """The kinds that chakra's own generator writes in its test of all types, negative numbers among them."""
    reported = [("a", "double_val", 1.25), ("b", "float_val", 0.5), ("c", "int32_val", 12345), ("d", "sint64_val", -9)]
    reported += [("e", "fixed32_val", 7), ("f", "int64_val", -1), ("g", "string_val", "12345")]
    from simgpu.importers.chakra.forms import read_protobuf

    path = saved(tmp_path, files.protobuf([gpu(0, "a", 1, attr=reported)]))
    attributes = read_protobuf(path).nodes[0].attributes
    assert attributes == {"is_cpu_op": False} | {name: value for name, _, value in reported}


def test_fields_that_are_not_read_are_skipped(tmp_path):
    """Newer schemas add fields, such as storage (11); lists of attributes are not read."""
    extra = files.text(11, files.number(1, 2)) + files.text(10, files.text(1, "sizes") + files.text(10, b"\x01\x02"))
    raw = files.node(gpu(0, "a", 3)) + extra
    path = saved(tmp_path, files.message(files.text(1, "0.0.4")) + files.message(raw))
    assert import_trace(path, ONE)[0].compute_ns == 3000


def test_all_nodes_are_kernels_if_none_names_a_device(tmp_path):
    """A workload that chakra_converter made from text: layers and phases are in the names."""
    parts = ("FWD", "BWD_WG", "BWD_IG")
    nodes: list[Node] = [
        {"id": n, "name": f"COMP_NODE_fc_1_{part}", "type": COMP, "duration_micros": 4, "data_deps": [n - 1][:n]}
        for n, part in enumerate(parts)
    ]
    metadata = files.text(2, files.attribute("schema", "string_val", "1.0.2-chakra.1.0.0"))
    trace, _ = import_trace(saved(tmp_path, files.protobuf(nodes, metadata)), ONE)
    assert [kernel.phase for kernel in trace.kernels] == ["forward", "backward", "backward"]
    assert {kernel.layer for kernel in trace.kernels} == {"fc_1"}
    assert "all compute nodes count as GPU kernels" in trace.info.notes


def test_order_follows_dependencies_then_ids(tmp_path):
    """c (2) waits for d (9), through a node of the host; of what is free, the lower id goes first."""
    host = {"id": 12, "name": "launch", "type": COMP, "data_deps": [9], "attr": [CPU]}
    nodes = [gpu(9, "d", 1), gpu(2, "c", 1, [12]), host, gpu(5, "b", 1), gpu(3, "a", 1)]
    assert [kernel.op for kernel in imported(tmp_path, nodes).kernels] == ["a", "b", "d", "c"]


def test_order_follows_recorded_starts(tmp_path):
    nodes = [
        gpu(1, "late", 5, start_time_micros=1030),
        gpu(2, "early", 5, start_time_micros=1000),
        gpu(3, "middle", 5, start_time_micros=1010),
    ]
    trace = imported(tmp_path, nodes)
    assert [(kernel.op, kernel.start_ns) for kernel in trace.kernels] == [
        ("early", 0),
        ("middle", 10_000),
        ("late", 30_000),
    ]


def test_launch_times_order_kernels_and_are_not_stored(tmp_path):
    """Converted from PyTorch, a node's time is when its kernel was launched."""
    metadata = b"".join(
        files.text(2, raw)
        for raw in (
            files.attribute("schema", "string_val", "1.1.0-chakra.0.0.4"),
            files.attribute("pid", "uint64_val", 42),
        )
    )
    nodes = [gpu(1, "b", 5, start_time_micros=1030), gpu(2, "a", 5, start_time_micros=1000)]
    trace, _ = import_trace(saved(tmp_path, files.protobuf(nodes, metadata)), ONE)
    assert [(kernel.op, kernel.start_ns) for kernel in trace.kernels] == [("a", None), ("b", None)]


def test_moving_memory_is_left_out_and_counted(tmp_path):
    nodes = [
        *CHAIN,
        gpu(5, "Memcpy HtoD (Pageable -> Device)", 30, [4]),
        gpu(6, "Memset (Device)", 1),
        {"id": 7, "name": "load", "type": MEM_LOAD, "attr": [GPU]},
    ]
    trace = imported(tmp_path, nodes)
    assert len(trace.kernels) == 4
    assert "Copies over the link and fills of memory are left out: 3, 31 us in all." in trace.info.notes


def test_a_copy_within_the_device_is_a_kernel(tmp_path):
    trace = imported(tmp_path, [*CHAIN, gpu(5, "Memcpy DtoD (Device -> Device)", 3, [4])])
    assert (trace.kernels[-1].op, trace.kernels[-1].duration_ns) == ("Memcpy DtoD (Device -> Device)", 3000)
    assert "left out" not in trace.info.notes


def test_kernels_below_a_microsecond_are_counted(tmp_path):
    trace = imported(tmp_path, [*CHAIN, gpu(5, "tiny", 0)])
    assert trace.kernels[-1].duration_ns == 0
    assert "Kernels with 0 us, shorter than the format's resolution: 1." in trace.info.notes


def test_same_bytes_each_time(tmp_path):
    path = saved(tmp_path, files.protobuf(CHAIN))
    for name in ("one", "two"):
        write_trace(import_trace(path, ONE)[0], tmp_path / name)
    for file in sorted((tmp_path / "one").iterdir()):
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


def test_a_trace_with_more_nodes_than_fit_into_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "_LOOK_EVERY", 64)
    monkeypatch.setattr(free_memory, "available_memory", lambda: 200_000)
    path = saved(tmp_path, files.protobuf([gpu(number, "k", 1) for number in range(100)]))
    what = r"is larger than this machine's memory: 64 nodes needed so far, .* with 195\.3 KiB free"
    with pytest.raises(InputError, match=rf"{what}; convert the trace of a single iteration, or use more memory"):
        import_trace(path, ONE)


def test_batch_is_required(tmp_path):
    with pytest.raises(InputError, match=r"does not contain its batch size; .*--batch"):
        import_trace(saved(tmp_path, files.protobuf(CHAIN)))


WHOLE = files.protobuf(CHAIN)
SPOILT = {
    "cut in a message": (WHOLE[:-1], r"message 6: is cut off"),
    "cut in a length": (WHOLE + b"\x80", r"message 7: is cut off"),
    "cut between messages": (files.protobuf(CHAIN[1:]), r"node 1 \(matmul fwd\) depends on node 0, which is not in"),
    "rubbish behind": (WHOLE + b"\x05hello", r"message 7: is cut off or is not a Node of Chakra's schema"),
    "endless length": (WHOLE + b"\xff" * 12, r"message 7: is cut off or is not a Node"),
    "metadata alone": (files.protobuf([]), r"contains no compute nodes of a GPU .* it has no nodes"),
    "the host alone": (files.protobuf([CHAIN[2] | {"data_deps": []}]), r"no compute nodes of a GPU .* has 1 COMP_NODE"),
    "another version": (
        files.protobuf(CHAIN, files.text(1, "0.9")),
        r"schema version: '0\.9' is not supported; supported versions of Chakra's schema: 0\.0\.4, 1\.0\.0",
    ),
    "another schema": (
        files.protobuf(CHAIN, files.text(2, files.attribute("schema", "string_val", "2.0-chakra.7"))),
        r"schema version: '2\.0-chakra\.7' is not supported",
    ),
    "a cycle": (
        files.protobuf([gpu(0, "a", 1), gpu(1, "b", 1, [0, 3]), gpu(2, "c", 1, [1]), gpu(3, "d", 1, [2])]),
        r"message 3: a cycle, each node depends on the next: 1 \(b\) -> 3 \(d\) -> 2 \(c\) -> 1 \(b\)",
    ),
    "no durations": (
        files.protobuf([gpu(0, "a", 0), gpu(1, "b", 0)]),
        r"(?s)node 0 \(a\) has no duration.*node 1 \(b\)",
    ),
    "work without a duration": (
        files.protobuf([*CHAIN, gpu(5, "x", 0, attr=[("num_ops", "int64_val", 5)])]),
        r"message 7: node 5 \(x\) has no duration; simgpu replays recorded times",
    ),
    "communication": (
        files.protobuf([*CHAIN, {"id": 5, "name": "ncclDevKernel_AllReduce", "type": ALL_REDUCE}]),
        r"COMM_COLL_NODE 5 \(ncclDevKernel_AllReduce\) is communication \(1 such nodes\); a trace has one GPU",
    ),
    "one id twice": (files.protobuf([*CHAIN, gpu(4, "x", 1)]), r"message 7: node 4 \(x\) has the same id as message 6"),
    "an unknown type": (files.protobuf([{"id": 3, "name": "x", "type": 42}]), r"node 3 \(x\): its type 42 is not one"),
    "damaged gzip": (gzip.compress(WHOLE)[:-9], r"is cut off"),
}


@pytest.mark.parametrize("case", SPOILT)
def test_damaged_protobuf_is_reported(tmp_path, case):
    content, message = SPOILT[case]
    with pytest.raises(InputError, match=message):
        import_trace(saved(tmp_path, content), ONE)


@pytest.mark.slow
def test_truncated_file_is_reported_unless_cut_between_messages(tmp_path):
    ends = {len(files.protobuf(CHAIN[:count])) for count in range(1, len(CHAIN) + 1)}
    for size in range(1, len(WHOLE)):
        path = saved(tmp_path, WHOLE[:size])
        if size in ends:
            assert len(import_trace(path, ONE)[0].kernels) < 4
        else:
            with pytest.raises(InputError):
                import_trace(path, ONE)


def changed(**fields: Any) -> str:
    """JSON of one kernel with some fields changed."""
    good = {"name": "a", "type": "COMP_NODE", "durationMicros": "3", "attr": [{"name": "is_cpu_op", "boolVal": False}]}
    return json.dumps({"version": "0.0.4"}) + "\n" + json.dumps(good | fields)


SPOILT_JSON = {
    "cut": (files.jsonized(CHAIN)[:-3], r"value 6: the JSON ends too early: the file is cut off"),
    "no object": (changed() + " 7", r"value 3: cannot be read: 7 is not an object"),
    "a negative time": (
        changed(durationMicros="-3"),
        r"value 2: cannot be read: '-3' is not a number of micro",
    ),
    "no time": (changed(durationMicros="nan"), r"'nan' is not a number of microseconds"),
    "an unknown type": (changed(type="GPU_NODE"), r"its type 'GPU_NODE' is not one of the schema's"),
    "an id with a sign": (changed(id="-1"), r"'-1' is not a whole number >= 0"),
    "an attribute without a name": (changed(attr=[{"boolVal": True}]), r"value 2: the node lacks 'name'"),
    "a graph cut off": ('{"workload_graph": [{"Id": 0, "Na', r"item 1 of workload_graph: .*cut off"),
    "a graph without types": ('{"workload_graph": [{"Id": 0, "Name": "a"}]}', r"the node lacks 'NodeType'"),
}


@pytest.mark.parametrize("case", SPOILT_JSON)
def test_damaged_json_is_reported(tmp_path, case):
    content, message = SPOILT_JSON[case]
    with pytest.raises(InputError, match=message):
        import_trace(saved(tmp_path, content, "net.json"), ONE)


@pytest.mark.parametrize("content", [b"\x06hello!", b"\x09\x0a\x02..\x0a\x03abc", b"\x02\x0a\x05", b"{}", b"\x00\x00"])
def test_files_of_other_formats_are_not_recognised_as_chakra(tmp_path, content):
    with pytest.raises(InputError, match="not a recording of a known format"):
        detect(saved(tmp_path, content))


def test_missing_protobuf_names_the_package_to_install(tmp_path, monkeypatch):
    path = saved(tmp_path, files.protobuf(CHAIN))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="simgpu with its extra 'chakra'"):
        import_trace(path, ONE)
    trace, _ = import_trace(saved(tmp_path, files.jsonized(CHAIN), "net.json"), ONE)
    assert len(trace.kernels) == 4
