"""What PyTorch's own partitioner saves in a compiled layer or model of transformers, on small tensors on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import detect_fake_mode
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.virtualized import V

from tests.workloads.configured.transformers_models import model

VOCABULARY = 512


class Partitioner:
    """Splits graphs as TorchInductor does, and notes the bytes of what each saves, weights and buffers aside."""

    def __init__(self) -> None:
        self.saved: list[list[int]] = []

    def __call__(self, graph: Any, inputs: Any, **options: Any) -> Any:
        with V.set_fake_mode(detect_fake_mode(inputs)):
            graph = joint_graph_passes(graph)
        split = min_cut_rematerialization_partition(graph, inputs, **options)
        static = {f"primals_{place + 1}" for place in options["static_lifetime_input_indices"]}
        given = [node for node in split[1].graph.nodes if node.op == "placeholder"]
        self.saved.append(
            [_bytes_on_cuda(node) for node in given if node.name not in static and "tangents" not in node.name]
        )
        return split

    @property
    def backend(self) -> Any:
        """For `torch.compile`: runs the split graphs operator by operator."""
        return aot_autograd(
            fw_compiler=_as_it_is, bw_compiler=_as_it_is, decompositions=select_decomp_table, partition_fn=self
        )


def _as_it_is(graph: Any, _: Any) -> Any:
    return make_boxed_func(graph.forward)


def _bytes_on_cuda(node: Any) -> int:
    """Layer normalization keeps its statistics in float32 on CUDA, and in the input's format on the CPU."""
    value = node.meta["val"]
    is_statistic = value.dim() == 3 and value.shape[-1] == 1 and value.dtype is torch.bfloat16
    size: int = value.numel() * value.element_size()
    return 2 * size if is_statistic else size


def partitioned(
    values: dict[str, Any],
    batch: int,
    length: int,
    *,
    whole: bool,
    autocast: bool,
    changed: Callable[[Any], Any] = lambda module: module,
) -> list[int]:
    """The bytes of each tensor that the first layer, or the whole model, saves, weights aside.

    changed: returns the model with what is added to it.
    """
    torch._dynamo.reset()
    partitioner = Partitioner()
    module = changed(model(values, "float32" if autocast else "bfloat16"))
    inside = getattr(module.base_model, "model", module.base_model)  # Gemma 3's class is its own base
    layers = inside.h if hasattr(inside, "h") else inside.layers
    if whole:
        module = torch.compile(module, backend=partitioner.backend, dynamic=False)
    else:
        layers[0] = torch.compile(layers[0], backend=partitioner.backend, dynamic=False)
    tokens = torch.randint(VOCABULARY, (batch, length))
    with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
        loss = module(input_ids=tokens, labels=tokens).loss
    loss.backward()
    (saved,) = partitioner.saved
    return sorted(saved)
