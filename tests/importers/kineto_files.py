"""Small PyTorch profiles and execution traces, written event by event for the tests that import them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


class Profile:
    """A profile of one process; times in microseconds."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.head: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "A GPU"}]}
        self._correlation = 0
        self._function = 0

    def op(self, name: str, ts: Any, dur: Any, tid: int = 1, cat: str = "cpu_op", **arguments: Any) -> int:
        """An operator; returns its Record function id."""
        self._function += 1
        reported = {"External id": self._function, "Record function id": self._function}
        reported |= {key.replace("_", " "): value for key, value in arguments.items()}
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": reported}
        )
        return self._function

    def mark(self, name: str, ts: Any, dur: Any) -> None:
        self.op(name, ts, dur, cat="user_annotation")

    def module(self, name: str, ts: Any, dur: Any) -> None:
        event = {
            "ph": "X",
            "cat": "python_function",
            "name": f"nn.Module: {name}",
            "pid": 1,
            "tid": 1,
            "ts": ts,
            "dur": dur,
        }
        self.events.append(event)

    def kernel(self, launched: Any, ts: Any, dur: Any, **changed: Any) -> dict[str, Any]:
        """A launch at a moment of a thread, and the kernel that it started."""
        self._correlation += 1
        launch, tid = changed.pop("launch", True), changed.pop("tid", 1)
        name, cat = changed.pop("name", "gemm"), changed.pop("cat", "kernel")
        if launch:
            call = {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "pid": 1,
                "tid": tid,
                "ts": launched,
                "dur": 1,
            }
            self.events.append({**call, "args": {"correlation": self._correlation}})
        reported = {"device": 0, "stream": 7, "correlation": self._correlation} | changed
        event = {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": reported}
        self.events.append(event)
        return event

    def memory(self, ts: Any, address: int, size: int, total: int, tid: int = 1) -> None:
        reported = {"Device Type": 1, "Device Id": 0, "Addr": address, "Bytes": size, "Total Allocated": total}
        event = {
            "ph": "i",
            "cat": "cpu_instant_event",
            "name": "[memory]",
            "pid": 1,
            "tid": tid,
            "ts": ts,
            "args": reported,
        }
        self.events.append(event)

    def text(self) -> str:
        return json.dumps({**self.head, "traceEvents": self.events})

    def write(self, path: Path) -> Path:
        return write(path, self.text())


def write(path: Path, text: str) -> Path:
    """A file with a text; compressed where its name ends in .gz."""
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def tensor(number: int, storage: int, *shape: int, device: str = "cuda:0") -> tuple[list[Any], list[int], str]:
    """A float32 tensor as an execution trace writes it: value, shape, type."""
    elements = 1
    for side in shape:
        elements *= side
    return [number, storage, 0, elements, 4, device], list(shape), "Tensor(float)"


class ExecutionTrace:
    """An execution trace with the nested layout of schema 1.1, or the flat one of 1.0."""

    def __init__(self, schema: str = "1.1.1-chakra.0.0.4") -> None:
        self.schema = schema
        self.nodes: list[dict[str, Any]] = []
        self._number = 0

    def node(
        self, name: str, function: int, takes: list[Any], gives: list[Any], schema: str = "", thread: int = 1
    ) -> None:
        self._number += 100
        if self.schema.startswith("1.0"):
            reported: dict[str, Any] = {"rf_id": function, "tid": thread, "op_schema": schema}
            for side, listed in (("input", takes), ("output", gives)):
                reported[f"{side}s"] = [part[0] for part in listed]
                reported[f"{side}_shapes"] = [part[1] for part in listed]
                reported[f"{side}_types"] = [part[2] for part in listed]
        else:
            attributes = {"rf_id": function, "tid": thread, "op_schema": schema}
            reported = {"attrs": [{"name": key, "type": "", "value": value} for key, value in attributes.items()]}
            for side, listed in (("inputs", takes), ("outputs", gives)):
                reported[side] = {
                    "values": [part[0] for part in listed],
                    "shapes": [part[1] for part in listed],
                    "types": [part[2] for part in listed],
                }
        self.nodes.append({"id": self._number, "name": name, **reported})

    def write(self, path: Path) -> Path:
        return write(path, json.dumps({"schema": self.schema, "time": "2026-02-03 04:05:06", "nodes": self.nodes}))


LINEAR = "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"
RELU_ = "aten::relu_(Tensor(a!) self) -> Tensor(a!)"
BACKWARD = "aten::linear_backward(Tensor self, Tensor grad_output, Tensor weight) -> (Tensor, Tensor)"
ADD_ = "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)"


def small_run(with_memory: bool = True, schema: str = "1.1.1") -> tuple[Profile, ExecutionTrace]:
    """One layer trained once: y = relu_(x w), dw from y, w += dw. 8 samples of 4 features, 512-byte allocations."""
    profile, recorded = Profile(), ExecutionTrace(schema)
    x, w, y, dw = tensor(11, 1, 8, 4), tensor(12, 2, 4, 4), tensor(13, 3, 8, 4), tensor(14, 4, 4, 4)
    profile.module("Linear_0", 9, 21)
    linear = profile.op("aten::linear", 10, 10, Input_Dims=[[8, 4], [4, 4], []], Sequence_number=5)
    relu = profile.op("aten::relu_", 22, 8, Input_Dims=[[8, 4]], Sequence_number=6)
    engine = "autograd::engine::evaluate_function: LinearBackward0"
    profile.op(engine, 40, 20, tid=2, Sequence_number=5, Fwd_thread_id=1)
    backward = profile.op("aten::linear_backward", 42, 10, tid=2)
    profile.mark("Optimizer.step#SGD.step", 70, 10)
    add = profile.op("aten::add_", 72, 5)
    if with_memory:
        profile.memory(11, 3000, 512, 2560)  # y; x, w and 1024 bytes that no tensor names were there before
        profile.memory(12, 9000, 1024, 3584)  # scratch memory of the operator
        profile.memory(18, 9000, -1024, 2560)
        profile.memory(43, 4000, 512, 3072, tid=2)  # dw
        profile.memory(55, 3000, -512, 2560, tid=2)  # y goes
    profile.kernel(13, 100, 10.5, name="split")
    profile.kernel(15, 111, 20, name="gemm")
    profile.kernel(24, 132, 4, name="clamp")
    profile.kernel(45, 140, 30.25, tid=2, name="gemm")
    profile.kernel(74, 180, 2, name="axpy")
    recorded.node("aten::linear", linear, [x, w, ("<None>", [], "None")], [y], LINEAR)
    recorded.node("aten::relu_", relu, [y], [y], RELU_)
    recorded.node("aten::linear_backward", backward, [x, y, w], [("<None>", [], "None"), dw], BACKWARD, thread=2)
    recorded.node("aten::add_", add, [w, dw, (0.1, [], "Double")], [w], ADD_)
    return profile, recorded
