"""CSWAP's tensors: sizes and sparsity of VGG16's."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from simgpu.compression.codecs.gpu.paper import VGG16_SIZES
from simgpu.experiments.training import departures
from simgpu.hardware.nodes import load_node
from simgpu.simulation.run import simulate
from simgpu.trace.model import Trace
from simgpu.workloads.modelled import build_trace
from simgpu.workloads.sparsity.generator import with_sparsity

EPOCHS = 50
_GB = 10**9


@lru_cache
def vgg16() -> Trace:
    """VGG16 at a batch of 128 on ImageNet, with the sparsity of fifty epochs."""
    return with_sparsity(build_trace("vgg16", batch=128, gpu=load_node("v100").gpu), EPOCHS)


@lru_cache
def swapped() -> dict[str, str]:
    """What the paper calls the sparse tensors that vDNN swaps, by their blocks in the order in which they leave."""
    trace = vgg16()
    left = departures(simulate(trace, load_node("v100"), "vdnn", parameters={"mode": "conv"}))
    sparse = {sample.block for sample in trace.sparsity}
    return dict(zip([block for block in left if block in sparse], VGG16_SIZES, strict=True))


def tensors() -> dict[str, Any]:
    """Sizes and sparsity of the twelve (sections II-B and V-B)."""
    trace, names = vgg16(), swapped()
    zeros = {name: [each.sparsity for each in trace.sparsity if each.block == block] for block, name in names.items()}
    sizes = [trace.block_by_id[block].bytes / 2**20 for block in names]
    return {
        "first_mib": sizes[0],
        "last_mib": sizes[-1],
        "least": min(map(min, zeros.values())),
        "most": max(map(max, zeros.values())),
        "relu4_first": zeros["ReLU4"][0],
        "relu4_last": zeros["ReLU4"][-1],
        "max4_most": max(zeros["MAX4"]),
    }


CHECKS = {"tensors": tensors}
