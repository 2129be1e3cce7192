"""Chakra traces that name tensors: which blocks they become, rule by rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simgpu.errors import InputError
from simgpu.importers import ImportOptions, import_trace
from simgpu.trace.model import BlockKind, Phase, Trace
from tests.importers import chakra_files as files
from tests.importers.chakra_files import Node, tensors


class Host:
    """A host's calls with the kernel of each, one after another."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def call(self, name: str, given: Any, built: Any, schema: str = "", kernels: tuple[str, ...] = ("k",)) -> int:
        number = len(self.nodes) + 1
        reported = [("is_cpu_op", "bool_val", True), ("op_schema", "string_val", schema)]
        after = [number - 1] if self.nodes else []
        common = {"type": 4, "inputs": given, "outputs": built}
        self.nodes.append({"id": number, "name": name, "data_deps": after, "attr": reported, **common})
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
    return import_trace(host.save(folder), ImportOptions(batch=8))[0]


ADD_ = "aten::add_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)"
LINEAR = "aten::linear(Tensor input, Tensor weight) -> Tensor"


def test_kernels_read_their_operators_inputs_and_write_its_outputs(tmp_path):
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
    result = {block.id: (block.kind, block.bytes, block.persistent, block.shape, block.dtype) for block in trace.blocks}
    assert result == {
        "s101": (BlockKind.INPUT, 32, True, (8,), "float32"),
        "s102": (BlockKind.WEIGHT, 16, True, (4,), "float32"),
        "s103": (BlockKind.ACTIVATION, 32, False, (8,), "float32"),
        "s105": (BlockKind.ACTIVATION, 32, False, (8,), "float32"),
    }


def test_reused_storage_is_a_new_block(tmp_path):
    host = Host()
    host.call("aten::relu", tensors((1, 101, 8)), tensors((2, 102, 8)))
    host.call("aten::relu", tensors((2, 102, 8)), tensors((3, 103, 8)))
    host.call("aten::relu", tensors((3, 103, 8)), tensors((2, 102, 4)))
    trace = imported(tmp_path, host)
    assert [kernel.writes for kernel in trace.kernels] == [("s102",), ("s103",), ("s102.2",)]
    assert trace.block_by_id["s102.2"].bytes == 16


def test_result_of_an_inner_operator_belongs_to_the_outer_one(tmp_path):
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
    assert (block.kind, block.persistent, block.host_write) == (BlockKind.INPUT, False, trace.kernels[0].id)
    assert "Blocks filled by copies or fills that are left out: 1; each starts at its first reader." in trace.info.notes


def test_in_place_kernel_does_not_read_unwritten_memory(tmp_path):
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
    assert [kernel.pure for kernel in trace.kernels] == [True, True, False]
    kinds = {block.id: block.kind for block in trace.blocks}
    assert kinds == {"s101": "weight", "s102": "activation", "s103": "weight_gradient"}


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


def test_non_finite_numbers_are_skipped(tmp_path):
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
def test_damaged_tensors_are_reported(tmp_path, case):
    given, message = SPOILT[case]
    host = Host()
    host.call("aten::relu", given, tensors((2, 102, 8)))
    with pytest.raises(InputError, match=message):
        imported(tmp_path, host)
