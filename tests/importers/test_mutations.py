"""Damage of every kind to every field: an import ends with a trace or with a message, and soon."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simgpu.errors import SimgpuError
from simgpu.importers import ImportOptions, import_trace
from simgpu.io import free_memory
from tests.importers import chakra_files
from tests.importers.kineto_files import LINEAR, ExecutionTrace, Profile, tensor

GONE = object()
#: What stands in a field's place. The last two stand for what Python cannot write as JSON.
VALUES: tuple[Any, ...] = (GONE, None, [7], {"a": 7}, 10**4200, -1, "text", "9" * 5000, "1e999990 ms", "3000 levels")
AS_JSON = {"1e999990 ms": "1e999990", "3000 levels": "[" * 3000 + "]" * 3000}
#: CPU time that no import of a small file takes, s.
SOON = 1.0

Spoilt = Iterator[tuple[str, str]]


def spoilt_json(document: Any) -> Spoilt:
    """JSON of a document with each of its fields replaced by each of the values, and what was done."""

    def places(value: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
        for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            yield f"{path}/{key}", value, key
            yield from places(value[key], f"{path}/{key}")

    for path, holder, key in list(places(document, "")):
        stored = holder.copy()
        for value in VALUES:
            if value is GONE:
                del holder[key]
            else:
                holder[key] = value
            text = json.dumps(document)
            for word, written in AS_JSON.items():
                text = text.replace(f'"{word}"', written)
            yield f"{path} = {str(value)[:20]}", text
            holder.clear()
            holder.update(stored) if isinstance(holder, dict) else holder.extend(stored)


def spoilt_lines(lines: list[Any]) -> Spoilt:
    """The same for a text of JSON documents, one a line."""
    for place, line in enumerate(lines):
        for what, text in spoilt_json(line):
            others = [*map(json.dumps, lines)]
            yield f"{place}{what}", "\n".join([*others[:place], text, *others[place + 1 :]])


WORDS = ("", "null", "[7]", '"', "-1", "9" * 5000, "1e999990", "1e9999999999999999999", "nan")


def spoilt_words(text: str) -> Spoilt:
    """A text with each of its words replaced by each of a list; words are what stands between blanks and separators."""
    for match in re.finditer(r"[^\s,:;()\[\]-]+", text):
        for word in WORDS:
            yield f"{match[0]} at {match.start()} = {word[:20]!r}", text[: match.start()] + word + text[match.end() :]


def profile() -> tuple[dict[str, Any], dict[str, Any]]:
    """One event of each kind that is kept, and the execution trace of its operators."""
    built, recorded = Profile(), ExecutionTrace("1.1.1")
    built.head["baseTimeNanoseconds"] = 1_700_000_000_000_000_000
    built.mark("ProfilerStep#3", 0, 100)
    built.module("Linear_0", 9, 21)
    function = built.op("aten::linear", 10, 10.5, Input_Dims=[[8, 4], [4, 4]], Sequence_number=5, Fwd_thread_id=0)
    built.memory(11, 3000, 512, 2560)
    built.kernel(13, 100, 10.5)
    built.kernel(15, 120, 1, name="Memset", cat="gpu_memset")
    x, w, y = tensor(11, 1, 8, 4), tensor(12, 2, 4, 4), tensor(13, 3, 8, 4)
    recorded.node("aten::linear", function, [x, w], [y], LINEAR)
    document = {"schema": recorded.schema, "time": "2026-02-03 04:05:06", "nodes": recorded.nodes}
    return {**built.head, "traceEvents": built.events}, document


def flat_graph() -> dict[str, Any]:
    """The execution trace with the layout of schema 1.0."""
    recorded = ExecutionTrace("1.0.2")
    recorded.node("aten::linear", 2, [tensor(11, 1, 8, 4), tensor(12, 2, 4, 4)], [tensor(13, 3, 8, 4)], LINEAR)
    return {"schema": recorded.schema, "time": "2026-02-03 04:05:06", "nodes": recorded.nodes}


def linked() -> dict[str, Any]:
    """A node of the host, and one of the GPU behind it."""
    ends = {"inputs": chakra_files.tensors((11, 1, 8)), "outputs": chakra_files.tensors((13, 3, 8))}
    reported = {"attrs": [{"name": "op_schema", "type": "", "value": LINEAR}], **ends}
    host = {"id": 1, "name": "aten::linear", "ctrl_deps": None, "ts": 5, "exclusive_dur": 9, **reported}
    gpu = {"id": 2, "name": "gemm", "ctrl_deps": 1, "cat": "kernel", "stream": 7, "ts": 6, "exclusive_dur": 2.5}
    none: dict[str, list[Any]] = {"values": [], "shapes": [], "types": []}
    gpu |= {"inter_thread_dep": None, "sync_dep": [1], "inputs": none, "outputs": none.copy()}
    return {"schema": "1.0.2-chakra.0.0.4", "pid": 5, "nodes": [host, gpu]}


GPU = ("is_cpu_op", "bool_val", False)
NODES: list[chakra_files.Node] = [
    {
        "id": 1,
        "name": "aten::conv2d",
        "type": 4,
        "duration_micros": 3,
        "start_time_micros": 5,
        "attr": [GPU, ("stream", "int64_val", 7), ("num_ops", "int64_val", 9), ("op_schema", "string_val", LINEAR)],
        "inputs": chakra_files.tensors((11, 1, 8)),
        "outputs": chakra_files.tensors((12, 2, 8)),
    },
    {"id": 2, "name": "k", "type": 4, "duration_micros": 4, "ctrl_deps": [1], "data_deps": [1], "attr": [GPU]},
]


def jsonized() -> list[Any]:
    lines = chakra_files.jsonized(NODES).replace("\n", "").replace("}{", "}\n{").splitlines()
    return [json.loads(line) for line in lines]


WORKLOAD = {
    "workload_graph": [
        {"Id": 0, "Name": "a", "NodeType": 4, "is_cpu_op": False, "runtime": 3, "num_ops": 5, "data_deps": []},
        {"Id": 1, "Name": "b", "NodeType": "COMP_NODE", "is_cpu_op": False, "runtime": 4, "data_deps": [0]},
    ]
}

DTR: list[Any] = [
    {"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START"},
    {"INSTRUCTION": "CONSTANT", "NAME": "x"},
    {"INSTRUCTION": "MEMORY", "NAME": "x", "MEMORY": "64"},
    {"INSTRUCTION": "CALL", "NAME": "relu", "ARGS": ["x"], "RESULT": ["y"], "TIME": "5"},
    {"INSTRUCTION": "MEMORY", "NAME": "y", "MEMORY": "64"},
    {"INSTRUCTION": "ALIAS", "NAME": "y", "ALIAS": "-1"},
    {"INSTRUCTION": "ANNOTATE", "ANNOTATION": "BACKWARD"},
    {"INSTRUCTION": "MUTATE", "NAME": "add_", "ARGS": ["y", "x"], "MUTATE": [0], "TIME": "6"},
    {"INSTRUCTION": "COPY", "DST": "z", "SRC": "y"},
    {"INSTRUCTION": "RELEASE", "NAME": "y"},
]

TRIOSIM = {
    "tensor.csv": (
        "Index,TensorID,TensorShape,TensorNumElement,TensorEachByte,TensorType,TensorStorgeid,gpuid\n"
        '0,1,"[4, 2]",8,4,input,101,0\n1,2,[],0,0,weight,0,0\n2,3,"[4, 2]",8,4,output,103,0\n'
    ),
    "trace.csv": (
        "OperatorID,OperatorName,Operator_input,Operator_output,Operator_cudatimenooverlap,gpuid,stage\n"
        "1,aten::linear,[1; 2],[3],7,0,forward\n2,aten::_foreach_add_,[3; 1],[],1.5,0,optimizer\n"
    ),
}

G10 = {
    "tensors.config": "tensor0 Is weight (global)?: 1, Size in byte: 4096, Range:0--4096\n"
    "tensor1 Is weight (global)?: 0, Size in byte: 4096, Range:4096--8192\n",
    "kernels.config": "Kernel ID: 0, Name: ReLU_Forward\nParent OP ID:7; Name: ReLU\nExecution Time: 1200\n"
    "Input Tensors:\ntensor0 Is weight (global)?: 1, Size in byte: 4096, Range:0--4096\n"
    "Output Tensors:\ntensor1 Is weight (global)?: 0, Size in byte: 4096, Range:4096--8192\n" + "_" * 20 + "\n",
    "cudnn32.txt": "0000 0.001000 ms\n",
    "cudnn32Workspace.txt": "0000 4000 B\n",
}


def survives(path: Path, file: Path, sound: str, spoilt: Spoilt, reported: ImportOptions | None = None) -> None:
    """Every spoilt text in the place of a sound one, in a file of a recording, is imported or refused, and soon."""
    file.write_text(sound)
    import_trace(path, reported)
    failed, refused = [], 0
    for what, text in spoilt:
        file.write_text(text)
        before = time.process_time()
        try:
            import_trace(path, reported)
        except SimgpuError as error:
            refused += bool(str(error))
        except Exception as error:
            failed.append(f"{what}: {type(error).__name__}: {str(error)[:80]}")
        if (took := time.process_time() - before) > SOON:
            failed.append(f"{what}: took {took:.1f} s")
    assert not failed, "\n".join(failed)
    assert refused, "no damage was noticed"


@pytest.fixture(autouse=True)
def plenty_of_memory(monkeypatch):
    """Asking the system takes longer than importing a file of this size."""
    monkeypatch.setattr(free_memory, "available_memory", lambda: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("document", "reported"),
    [(profile()[0], None), (linked(), None), (WORKLOAD, ImportOptions(batch=1))],
    ids=["profile", "Chakra, linked", "Chakra, workload graph"],
)
def test_a_damaged_document_is_imported_or_reported(tmp_path, document, reported):
    path = tmp_path / "net.json"
    survives(path, path, json.dumps(document), spoilt_json(document), reported)


@pytest.mark.slow
@pytest.mark.parametrize("lines", [jsonized(), DTR], ids=["Chakra, jsonized", "DTR log"])
def test_a_spoilt_file_of_several_documents(tmp_path, lines):
    path = tmp_path / "net-b4.json"
    survives(path, path, "\n".join(map(json.dumps, lines)), spoilt_lines(lines))


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", ["profile", "nested graph", "flat graph"])
def test_a_spoilt_file_of_a_joined_pair(tmp_path, layout):
    document, graph = profile()
    joined = ("cpu_op", "cuda_runtime", "kernel", "cpu_instant_event")
    document["traceEvents"] = [event for event in document["traceEvents"] if event["cat"] in joined]
    path, neighbour = tmp_path / "net.json", tmp_path / "graph.json"
    path.write_text(json.dumps(document))
    neighbour.write_text(json.dumps(graph))
    file, spoilt = (path, document) if layout == "profile" else (neighbour, graph)
    if layout == "flat graph":
        spoilt = flat_graph()
    survives(path, file, json.dumps(spoilt), spoilt_json(spoilt), ImportOptions(execution_trace=neighbour))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("texts", "file"),
    [*((TRIOSIM, file) for file in TRIOSIM), *((G10, file) for file in G10)],
    ids=[*TRIOSIM, *G10],
)
def test_a_spoilt_file_of_a_folder(tmp_path, texts, file):
    for other, text in texts.items():
        (tmp_path / other).write_text(text)
    survives(tmp_path, tmp_path / file, texts[file], spoilt_words(texts[file]))
