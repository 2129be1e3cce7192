"""The buffers that TorchInductor's generated code allocates for a compiled layer of transformers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from shutil import which
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")
if which("g++") is None:
    pytest.skip("TorchInductor needs g++ for code on the CPU", allow_module_level=True)

import torch
from torch._inductor import config as inductor_config
from torch._inductor.graph import GraphLowering

from tests.workloads.compiled.partitioned import VOCABULARY
from tests.workloads.configured.transformers_models import model

_NEW = re.compile(r"(buf\d+) = empty_strided\w*\(\(([\d, ]*)\), \([\d, ]*\), torch\.(\w+)\)")
_SEEN = re.compile(r"(buf\d+) = reinterpret_tensor\((\w+), \(([\d, ]*)\), .*# reuse")
_SAME = re.compile(r"(buf\d+) = (\w+); del \w+  # reuse")


def buffers(values: dict[str, Any], batch: int, length: int) -> list[list[int]]:
    """The bytes of each value that has memory, for the forward and the backward pass of the first layer, in bfloat16.

    What attention returns is left out. A buffer that another value is written over counts for both.
    """
    torch._dynamo.reset()
    with _generated() as codes, inductor_config.patch(force_pointwise_cat=True, fx_graph_cache=False):
        module = model(values)
        layers = module.base_model.h if hasattr(module.base_model, "h") else module.base_model.layers
        layers[0] = torch.compile(layers[0], dynamic=False)
        tokens = torch.randint(VOCABULARY, (batch, length))
        module(input_ids=tokens, labels=tokens).loss.backward()
    return [sorted(_sizes(code).values()) for code in codes]


@contextmanager
def _generated() -> Iterator[list[str]]:
    """Notes the code of each graph."""
    codes: list[str] = []
    before = GraphLowering.codegen

    def codegen(graph: Any) -> Any:
        result = before(graph)
        codes.append(result[0].value)
        return result

    GraphLowering.codegen = codegen
    try:
        yield codes
    finally:
        GraphLowering.codegen = before


def _sizes(code: str) -> dict[str, int]:
    """Bytes of each buffer by name."""
    sizes: dict[str, int] = {}
    for line in code.splitlines():
        if made := _NEW.search(line):
            sizes[made[1]] = _count(made[2]) * getattr(torch, made[3]).itemsize
        elif seen := _SEEN.search(line):  # over a saved value, which is in bfloat16
            itemsize = 2 if seen[2] not in sizes else sizes[seen[2]] // _count(seen[3])
            sizes[seen[1]] = _count(seen[3]) * itemsize
        elif same := _SAME.search(line):
            sizes[same[1]] = sizes[same[2]]
    return sizes


def _count(shape: str) -> int:
    return prod(int(each) for each in shape.split(",") if each.strip())
