"""Chakra traces of a profile linked with an execution trace: a real recording, small ones, damaged ones."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from simgpu.errors import InputError
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.importers import ImportOptions, import_trace
from simgpu.importers.chakra.nodes import NODES
from simgpu.simulation.run import simulate
from simgpu.trace.check import check_trace
from simgpu.trace.model import BlockKind, Trace
from simgpu.trace.stats import trace_stats
from tests.importers import chakra_files as files
from tests.importers.chakra_files import Node, tensors

DATA = Path(__file__).parents[3] / "shared" / "data" / "h100-kineto"
PROFILE, GRAPH = DATA / "profiler_vgg13-iter41.json", DATA / "graph_vgg13-iter41.json"
SCHEMA = "1.0.2-chakra.0.0.4"


@cache
def linked() -> dict[str, Any]:
    """The host's trace with the profile's kernels in it, as chakra_trace_link writes it.

    Each GPU activity becomes a node behind the operator that launched it, with the operator's tensors and attributes,
    its own category, name, duration and stream; nodes are numbered anew in the order in which they begin.
    """
    if not PROFILE.exists():
        pytest.skip("the recording is not next to the repository (../shared/data/h100-kineto)")
    events = json.loads(PROFILE.read_text())["traceEvents"]
    graph = json.loads(GRAPH.read_text())
    ops = [event for event in events if event.get("cat") in ("cpu_op", "user_annotation")]
    ops.sort(key=lambda op: (op["ts"], -op["dur"]))
    nodes = sorted((node for node in graph["nodes"] if node["rf_id"]), key=lambda node: node["id"])
    assert [op["name"] for op in ops] == [node["name"] for node in nodes], "both list the same calls in the same order"
    calls = {event["args"]["correlation"]: event for event in events if event.get("cat") == "cuda_runtime"}
    launched: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memset", "gpu_memcpy"):
            call = calls[event["args"]["correlation"]]
            around = [place for place, op in enumerate(ops) if op["ts"] <= call["ts"] <= op["ts"] + op["dur"]]
            launched.setdefault(innermost(ops, around, call), []).append(event | {"ts": call["ts"]})
    numbers: dict[int, int] = {}
    rows: list[dict[str, Any]] = []
    for node in sorted(graph["nodes"], key=lambda node: node["id"]):
        if not node["rf_id"]:
            numbers[node["id"]] = len(rows) + 1
            rows.append(row(node, len(rows) + 1, None))
            continue
        place = nodes.index(node)
        number = numbers[node["id"]] = len(rows) + 1
        op = ops[place]
        rows.append(row(node, number, numbers[node["parent"]]) | {"ts": op["ts"], "exclusive_dur": op["dur"]})
        for event in sorted(launched.get(place, ()), key=lambda event: event["ts"]):
            gpu = {"cat": event["cat"], "name": event["name"], "ts": event["ts"], "exclusive_dur": event["dur"]}
            rows.append(row(node, len(rows) + 1, number) | gpu | {"stream": event["args"]["stream"]})
    about = {key: graph[key] for key in ("pid", "time", "start_ts", "finish_ts")}
    return {"schema": SCHEMA, **about, "nodes": rows}


def innermost(ops: list[dict[str, Any]], around: list[int], call: dict[str, Any]) -> int:
    """Of the operators open at a call, the last to begin on its thread."""
    threads = {op["tid"] for op in ops}
    same = [place for place in around if ops[place]["tid"] == call["tid"]] if call["tid"] in threads else around
    return max(same)


def row(node: dict[str, Any], number: int, parent: int | None) -> dict[str, Any]:
    sides = {
        side: {"values": node[f"{side}s"], "shapes": node[f"{side}_shapes"], "types": node[f"{side}_types"]}
        for side in ("input", "output")
    }
    stored = ("rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid", "op_schema")
    attrs = [{"name": name, "type": "", "value": node[name]} for name in stored]
    ends = {"inputs": sides["input"], "outputs": sides["output"], "attrs": attrs}
    return {"id": number, "name": node["name"], "ctrl_deps": parent, **ends}


def converted() -> bytes:
    """The linked trace in protobuf, as chakra_converter writes it: tensors as Python's text, whole microseconds."""
    about = linked()
    metadata = [("schema", "string_val", SCHEMA), ("pid", "uint64_val", about["pid"])]
    nodes: list[Node] = []
    for node in about["nodes"]:
        attrs = [("op_schema", "string_val", item["value"]) for item in node["attrs"] if item["name"] == "op_schema"]
        attrs += [(a["name"], "int64_val", a["value"]) for a in node["attrs"] if a["name"] in ("fw_parent", "fw_tid")]
        attrs.append(("is_cpu_op", "bool_val", "cat" not in node))
        if "stream" in node:
            attrs.append(("stream", "int64_val", node["stream"]))
        parent = node["ctrl_deps"]
        nodes.append(
            {
                "id": node["id"],
                "name": node["name"],
                "type": 4,
                "ctrl_deps": [] if parent is None else [parent],
                "data_deps": [] if parent is None else [parent],
                "start_time_micros": int(node.get("ts", 0)),
                "duration_micros": int(node.get("exclusive_dur", 0)),
                "inputs": node["inputs"],
                "outputs": node["outputs"],
                "attr": attrs,
            }
        )
    return files.protobuf(nodes, b"".join(files.text(2, files.attribute(*node)) for node in metadata))


@pytest.fixture(scope="module", params=["linked JSON", "protobuf"])
def vgg13(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    path = tmp_path_factory.mktemp("chakra") / "vgg13.et"
    path.write_bytes(json.dumps(linked(), indent=4).encode() if request.param == "linked JSON" else converted())
    trace, recognised = import_trace(path)
    assert recognised == "Chakra trace"
    assert check_trace(trace) == []
    return trace


@cache
def pair() -> Trace:
    """The same recording, imported from its two files."""
    return import_trace(PROFILE, ImportOptions(execution_trace=GRAPH))[0]


@pytest.mark.slow
def test_kernels_of_the_real_recording(vgg13):
    assert (len(vgg13.kernels), vgg13.compute_ns) == (292, 346_344_000)
    assert "Copies over the link and fills of memory are left out: 33, 26 us in all." in vgg13.info.notes


def test_operators_phases_and_order_are_those_of_the_pair(vgg13):
    result = [(kernel.op, kernel.phase, kernel.duration_ns, kernel.pure) for kernel in vgg13.kernels]
    assert result == [(kernel.op, kernel.phase, kernel.duration_ns, kernel.pure) for kernel in pair().kernels]


def test_weights_their_gradients_and_state_are_those_of_the_pair(vgg13):
    """VGG-13 has 133,047,848 parameters; Adam keeps two values for each."""
    kinds = {row.kind: (row.blocks, row.bytes) for row in trace_stats(vgg13).kinds}
    same = {row.kind: (row.blocks, row.bytes) for row in trace_stats(pair()).kinds}
    assert kinds[BlockKind.WEIGHT] == same[BlockKind.WEIGHT] == (26, 4 * 133_047_848)
    assert kinds[BlockKind.WEIGHT_GRADIENT] == same[BlockKind.WEIGHT_GRADIENT]
    assert kinds[BlockKind.OPTIMIZER_STATE] == same[BlockKind.OPTIMIZER_STATE]


def test_tensors_are_in_the_same_blocks_as_in_the_pair(vgg13):
    """The pair knows allocations as well, and so workspaces; these are no tensors and have no shape."""

    def rows(trace: Trace) -> Counter[tuple[BlockKind, int]]:
        seen = (block for block in trace.blocks if block.shape is not None)
        return Counter((block.kind, block.bytes) for block in seen)

    assert vgg13.info.batch == pair().info.batch == 512
    assert rows(vgg13) == rows(pair())


@pytest.mark.slow
def test_memory_per_node_matches_the_constant(tmp_path):
    """The larger form; a limit that is derived from the count must not be far from the truth."""
    path = tmp_path / "vgg13.json"
    path.write_text(json.dumps(linked()))
    import_trace(path)
    tracemalloc.start()
    import_trace(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert NODES.bytes / 2 < peak / len(linked()["nodes"]) < NODES.bytes * 1.5


def test_policies_run_on_it(vgg13):
    node = NodeSpec("bench", GpuSpec("a GPU", 10**12), LinkSpec("a link", 10**10, 10**10))
    assert simulate(vgg13, node, "none").metrics.iteration_ns == vgg13.compute_ns
    assert simulate(vgg13, node, "vdnn").metrics.iteration_ns >= vgg13.compute_ns
    assert {block.release for block in vgg13.blocks} == {None}


def call(number: int, parent: int | None, **more: Any) -> dict[str, Any]:
    """A node of a linked trace; those of the GPU have a category."""
    ends = {"inputs": tensors((1, 101, 8)), "outputs": tensors((2, 102, 8))}
    return {"id": number, "name": "aten::relu", "ctrl_deps": parent, **ends, "attrs": [], "exclusive_dur": 9} | more


LINKED = [call(1, None, ts=5), call(2, 1, cat="kernel", name="k", stream=7, exclusive_dur=3.5, ts=12.25)]


def saved_linked(folder: Path, nodes: list[dict[str, Any]], schema: str = SCHEMA) -> Path:
    path = folder / "net.json"
    path.write_text(json.dumps({"schema": schema, "pid": 1, "nodes": nodes}))
    return path


def test_fractions_of_microseconds_are_exact(tmp_path):
    trace, _ = import_trace(saved_linked(tmp_path, LINKED))
    assert [(kernel.op, kernel.duration_ns, kernel.start_ns) for kernel in trace.kernels] == [
        ("aten::relu", 3500, None)
    ]
    assert trace.info.batch == 8
    with pytest.raises(InputError, match="was recorded with batch 8, as its shapes show, not with batch 2"):
        import_trace(saved_linked(tmp_path, LINKED), ImportOptions(batch=2))


SPOILT_LINKS = {
    "without kernels": (
        [LINKED[0]],
        SCHEMA,
        r"contains no compute nodes of a GPU .* link the host's trace with the profile",
    ),
    "of another schema": (LINKED, "1.1.0-chakra.0.9", r"schema version: '1\.1\.0-chakra\.0\.9' is not supported"),
    "without a parent": (
        [{key: value for key, value in LINKED[0].items() if key != "ctrl_deps"}],
        SCHEMA,
        r"item 1 of nodes: the node lacks 'ctrl_deps'",
    ),
    "without inputs": ([LINKED[0] | {"inputs": None}], SCHEMA, r"item 1 of nodes: cannot be read: .*NoneType"),
    "of several ranks": (
        [*LINKED, call(3, 1, cat="kernel", name="ncclDevKernel_AllReduce_Sum", stream=9)],
        SCHEMA,
        r"item 3 of nodes: COMM_COLL_NODE 3 \(ncclDevKernel_AllReduce_Sum\) is communication",
    ),
    "with a time that is none": ([LINKED[0] | {"ts": -4}], SCHEMA, r"-4 is not a number of microseconds >= 0"),
}


@pytest.mark.parametrize("case", SPOILT_LINKS)
def test_damaged_linked_traces_are_reported(tmp_path, case):
    nodes, schema, message = SPOILT_LINKS[case]
    with pytest.raises(InputError, match=message):
        import_trace(saved_linked(tmp_path, nodes, schema))


def test_truncated_linked_trace_is_reported(tmp_path):
    path = saved_linked(tmp_path, LINKED)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match=r"item 2 of nodes: the JSON ends too early: the file is cut off"):
        import_trace(path)
