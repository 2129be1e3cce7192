"""Chakra traces that name tensors: blocks rule by rule, and a real recording linked as Chakra's tools link it."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from simgpu.errors import InputError
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.simulation import simulate
from simgpu.trace.check import check_trace
from simgpu.trace.importers import Told, import_trace
from simgpu.trace.model import BlockKind, Phase, Trace
from simgpu.trace.stats import trace_stats
from tests.trace import chakra_files as files
from tests.trace.chakra_files import Node

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
        pytest.skip("the recording is not beside the repository (../shared/data/h100-kineto)")
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
    kept = ("rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid", "op_schema")
    attrs = [{"name": name, "type": "", "value": node[name]} for name in kept]
    ends = {"inputs": sides["input"], "outputs": sides["output"], "attrs": attrs}
    return {"id": number, "name": node["name"], "ctrl_deps": parent, **ends}


def converted() -> bytes:
    """The linked trace in protobuf, as chakra_converter writes it: tensors as Python's text, whole microseconds."""
    about = linked()
    metadata = [("schema", "string_val", SCHEMA), ("pid", "uint64_val", about["pid"])]
    nodes: list[Node] = []
    for told in about["nodes"]:
        attrs = [("op_schema", "string_val", item["value"]) for item in told["attrs"] if item["name"] == "op_schema"]
        attrs += [(a["name"], "int64_val", a["value"]) for a in told["attrs"] if a["name"] in ("fw_parent", "fw_tid")]
        attrs.append(("is_cpu_op", "bool_val", "cat" not in told))
        if "stream" in told:
            attrs.append(("stream", "int64_val", told["stream"]))
        parent = told["ctrl_deps"]
        nodes.append(
            {
                "id": told["id"],
                "name": told["name"],
                "type": 4,
                "ctrl_deps": [] if parent is None else [parent],
                "data_deps": [] if parent is None else [parent],
                "start_time_micros": int(told.get("ts", 0)),
                "duration_micros": int(told.get("exclusive_dur", 0)),
                "inputs": told["inputs"],
                "outputs": told["outputs"],
                "attr": attrs,
            }
        )
    return files.protobuf(nodes, b"".join(files.text(2, files.attribute(*told)) for told in metadata))


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
    return import_trace(PROFILE, Told(execution_trace=GRAPH))[0]


def test_kernels_of_the_real_recording(vgg13):
    assert (len(vgg13.kernels), vgg13.compute_ns) == (292, 346_344_000)
    assert "Copies over the link and fills of memory are left out: 33, 26 us in all." in vgg13.info.notes


def test_operators_phases_and_order_are_those_of_the_pair(vgg13):
    found = [(kernel.op, kernel.phase, kernel.duration_ns, kernel.pure) for kernel in vgg13.kernels]
    assert found == [(kernel.op, kernel.phase, kernel.duration_ns, kernel.pure) for kernel in pair().kernels]


def test_weights_their_gradients_and_state_are_those_of_the_pair(vgg13):
    """VGG-13 has 133,047,848 parameters; Adam keeps two values for each."""
    kinds = {row.kind: (row.blocks, row.bytes) for row in trace_stats(vgg13).kinds}
    same = {row.kind: (row.blocks, row.bytes) for row in trace_stats(pair()).kinds}
    assert kinds[BlockKind.WEIGHT] == same[BlockKind.WEIGHT] == (26, 4 * 133_047_848)
    assert kinds[BlockKind.WEIGHT_GRADIENT] == same[BlockKind.WEIGHT_GRADIENT]
    assert kinds[BlockKind.OPTIMIZER_STATE] == same[BlockKind.OPTIMIZER_STATE]


def test_blocks_are_those_of_the_pair_but_for_what_only_memory_events_show(vgg13):
    """The pair knows allocations: workspaces, and the true size of one small result (the weight of all labels)."""

    def rows(trace: Trace) -> Counter[tuple[BlockKind, int]]:
        seen = (block for block in trace.blocks if block.shape is not None)
        return Counter((block.kind, block.bytes) for block in seen)

    assert vgg13.info.batch == pair().info.batch == 512
    assert rows(vgg13) - rows(pair()) == {(BlockKind.FEATURE_MAP, 4): 1}
    assert rows(pair()) - rows(vgg13) == {(BlockKind.FEATURE_MAP, 512): 1}


def test_policies_run_on_it(vgg13):
    node = NodeSpec("bench", GpuSpec("a GPU", 10**12), LinkSpec("a link", 10**10, 10**10))
    assert simulate(vgg13, node, "none").metrics.iteration_ns == vgg13.compute_ns
    assert simulate(vgg13, node, "vdnn").metrics.iteration_ns >= vgg13.compute_ns
    assert {block.release for block in vgg13.blocks} == {None}


def tensors(*listed: tuple[int, int, int], kind: str = "Tensor(float)") -> dict[str, list[Any]]:
    """Inputs or outputs: (tensor, storage, elements) each."""
    values = [[tensor, storage, 0, count, 4, "cuda:0"] for tensor, storage, count in listed]
    return {"values": values, "shapes": [[count] for _, _, count in listed], "types": [kind] * len(listed)}


class Host:
    """A host's calls with the kernel of each, one after another."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def call(self, name: str, given: Any, made: Any, schema: str = "", kernels: tuple[str, ...] = ("k",)) -> int:
        number = len(self.nodes) + 1
        told = [("is_cpu_op", "bool_val", True), ("op_schema", "string_val", schema)]
        after = [number - 1] if self.nodes else []
        common = {"type": 4, "inputs": given, "outputs": made}
        self.nodes.append({"id": number, "name": name, "data_deps": after, "attr": told, **common})
        for kernel in kernels:
            attr = [("is_cpu_op", "bool_val", False)]
            place = {"id": len(self.nodes) + 1, "name": kernel, "ctrl_deps": [number]}
            self.nodes.append({**place, "duration_micros": 1, "attr": attr, **common})
        return number

    def save(self, folder: Path) -> Path:
        path = folder / "net.et"
        path.write_bytes(files.protobuf(self.nodes))
        return path


def imported(folder: Path, host: Host) -> Trace:
    return import_trace(host.save(folder), Told(batch=1))[0]


ADD_ = "aten::add_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)"
LINEAR = "aten::linear(Tensor input, Tensor weight) -> Tensor"


def test_kernels_read_what_their_operator_was_given_and_write_what_it_made(tmp_path):
    host = Host()
    host.call("aten::linear", tensors((1, 101, 8), (2, 102, 4)), tensors((3, 103, 8)), LINEAR, ("a", "b"))
    host.call("aten::add_", tensors((3, 103, 8), (1, 101, 8)), tensors((3, 103, 8)), ADD_)
    host.call("aten::view", tensors((3, 103, 8)), tensors((4, 103, 8)), kernels=())
    host.call("aten::relu", tensors((4, 103, 8)), tensors((5, 105, 8)))
    trace = imported(tmp_path, host)
    assert [(kernel.op, kernel.reads, kernel.writes) for kernel in trace.kernels] == [
        ("aten::linear", ("s101", "s102"), ("s103",)),
        ("aten::linear", ("s101", "s102"), ("s103",)),
        ("aten::add_", ("s101", "s103"), ("s103",)),
        ("aten::relu", ("s103",), ("s105",)),
    ]
    found = {block.id: (block.kind, block.bytes, block.persistent, block.shape, block.dtype) for block in trace.blocks}
    assert found == {
        "s101": (BlockKind.OTHER, 32, True, (8,), "float32"),
        "s102": (BlockKind.WEIGHT, 16, True, (4,), "float32"),
        "s103": (BlockKind.FEATURE_MAP, 32, False, (8,), "float32"),
        "s105": (BlockKind.FEATURE_MAP, 32, False, (8,), "float32"),
    }


def test_a_storage_that_comes_back_is_another_block(tmp_path):
    host = Host()
    host.call("aten::relu", tensors((1, 101, 8)), tensors((2, 102, 8)))
    host.call("aten::relu", tensors((2, 102, 8)), tensors((3, 103, 8)))
    host.call("aten::relu", tensors((3, 103, 8)), tensors((2, 102, 4)))
    trace = imported(tmp_path, host)
    assert [kernel.writes for kernel in trace.kernels] == [("s102",), ("s103",), ("s102.2",)]
    assert trace.block_by_id["s102.2"].bytes == 16


def test_what_an_operator_made_inside_is_its_own_result(tmp_path):
    """aten::empty inside gives the storage; the operator around it gives the same one back."""
    host = Host()
    outer = host.call("aten::relu", tensors((1, 101, 8)), tensors((2, 102, 8)))
    inner = host.call("aten::empty", tensors(), tensors((2, 102, 8)), kernels=())
    host.nodes[inner - 1]["ctrl_deps"] = [outer]
    host.call("aten::relu", tensors((2, 102, 8)), tensors((3, 103, 8)))
    trace = imported(tmp_path, host)
    assert [(kernel.reads, kernel.writes) for kernel in trace.kernels] == [
        (("s101",), ("s102",)),
        (("s102",), ("s103",)),
    ]


def test_the_batch_that_was_copied_from_the_host_is_the_input(tmp_path):
    copy_ = "aten::copy_(Tensor(a!) self, Tensor src) -> Tensor(a!)"
    host = Host()
    host.call("aten::empty", tensors(), tensors((1, 101, 8)), kernels=())
    copied = tensors((1, 101, 8))
    host.call("aten::copy_", copied, copied, copy_, ("Memcpy HtoD (Pinned -> Device)",))
    host.call("aten::relu", tensors((1, 101, 8)), tensors((2, 102, 8)))
    trace = imported(tmp_path, host)
    block = trace.block_by_id["s101"]
    assert (block.kind, block.persistent, block.born) == (BlockKind.INPUT, False, trace.kernels[0].id)
    assert "Blocks that were filled by what is left out: 1; each is born at its first reader." in trace.info.notes


def test_a_kernel_in_place_does_not_read_what_nobody_wrote(tmp_path):
    host = Host()
    host.call("aten::empty", tensors(), tensors((1, 101, 8)), kernels=())
    host.call("aten::add_", tensors((1, 101, 8), (2, 102, 8)), tensors((1, 101, 8)), ADD_)
    trace = imported(tmp_path, host)
    assert (trace.kernels[0].reads, trace.kernels[0].writes) == (("s102",), ("s101",))


def test_phases_follow_the_calls_around_a_kernel(tmp_path):
    host = Host()
    x, y = tensors((1, 101, 8)), tensors((2, 102, 8))
    host.call("aten::relu", x, y)
    engine = host.call("autograd::engine::evaluate_function: ReluBackward0", tensors(), tensors(), kernels=())
    inner = host.call("aten::threshold_backward", y, tensors((3, 103, 8)))
    step = host.call("Optimizer.step#SGD.step", tensors(), tensors(), kernels=())
    update = host.call("aten::add_", tensors((1, 101, 8), (3, 103, 8)), x, ADD_)
    host.nodes[inner - 1]["ctrl_deps"] = [engine]
    host.nodes[update - 1]["ctrl_deps"] = [step]
    trace = imported(tmp_path, host)
    assert [kernel.phase for kernel in trace.kernels] == [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    assert [kernel.pure for kernel in trace.kernels] == [True, None, False]
    kinds = {block.id: block.kind for block in trace.blocks}
    assert kinds == {"s101": "weight", "s102": "feature_map", "s103": "weight_gradient"}


def test_kernels_without_operators_name_their_own_tensors(tmp_path):
    attr = [("is_cpu_op", "bool_val", False)]
    common = {"type": 4, "duration_micros": 1, "attr": attr}
    host = Host()
    host.nodes = [
        {
            "id": 5,
            "name": "b",
            "data_deps": [9],
            "inputs": tensors((2, 102, 4)),
            "outputs": tensors((3, 103, 4)),
            **common,
        },
        {"id": 9, "name": "a", "inputs": tensors((1, 101, 4)), "outputs": tensors((2, 102, 4)), **common},
    ]
    trace = imported(tmp_path, host)
    assert [(kernel.op, kernel.reads, kernel.writes) for kernel in trace.kernels] == [
        ("a", ("s101",), ("s102",)),
        ("b", ("s102",), ("s103",)),
    ]


def test_numbers_that_python_writes_as_words_are_read_over(tmp_path):
    host = Host()
    given = tensors((1, 101, 8))
    given = {
        side: [*rows, {"values": float("-inf"), "shapes": [], "types": "Double"}[side]] for side, rows in given.items()
    }
    host.call("aten::masked_fill", given, tensors((2, 102, 8)))
    assert imported(tmp_path, host).kernels[0].reads == ("s101",)


SPOILT = {
    "not a list": (
        {"values": "x", "shapes": "[]", "types": "[]"},
        r"the tensors of node 1 \(aten::relu\) cannot be read",
    ),
    "cut off": ({"values": "[[1, 2", "shapes": "[]", "types": "[]"}, r"message 2: the tensors of node 1"),
    "of other lengths": (tensors((1, 101, 8)) | {"types": []}, r"1 values, 1 shapes and 0 types"),
    "a device that is another": (
        {"values": [[1, 2, 0, 8, 4, "cuda:0"], [3, 4, 0, 8, 4, "cuda:1"]], "shapes": [[8], [8]], "types": ["T", "T"]},
        r"has tensors on several GPUs \(cuda:0, cuda:1\); import the trace of one GPU",
    ),
}


@pytest.mark.parametrize("case", SPOILT)
def test_damaged_tensors_are_told(tmp_path, case):
    given, message = SPOILT[case]
    host = Host()
    host.call("aten::relu", given, tensors((2, 102, 8)))
    with pytest.raises(InputError, match=message):
        imported(tmp_path, host)
