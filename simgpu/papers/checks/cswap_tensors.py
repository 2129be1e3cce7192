"""CSWAP's tensors: sizes and sparsity of VGG16's, what codecs add to them, and how fast the servers' links are."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from simgpu.compression.codecs.csr import COUNT_BYTES, Csr, row_elements
from simgpu.compression.codecs.gpu.paper import VGG16_SIZES
from simgpu.compression.codecs.gpu.tensors import SparseTensor, array_of
from simgpu.compression.codecs.zvc import Zvc
from simgpu.experiments.training import departures
from simgpu.hardware.nodes import load_node
from simgpu.simulation.run import simulate
from simgpu.timeline.model import SpanKind
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


def links() -> dict[str, Any]:
    """GB/s of all copies of an iteration together, as CSWAP's profiler measures them (table II)."""
    found = {}
    for name in ("v100", "2080ti"):
        # Only its link is looked at, so it may have the memory that a batch of 128 takes.
        node = load_node(name, {"gpu.memory": "64 GiB", "host.memory": "64 GiB"})
        timeline = simulate(vgg16(), node, "vdnn", parameters={"mode": "conv"}).timeline
        for way, kind in (("h2d", SpanKind.COPY_H2D), ("d2h", SpanKind.COPY_D2H)):
            copies = timeline.kind == kind
            ns = int((timeline.end_ns - timeline.start_ns)[copies].sum())
            # Copies take whole nanoseconds.
            found[f"{way}_{name}"] = round(int(timeline.bytes[copies].sum()) * _GB / ns / _GB, 3)
    return found


def overhead() -> dict[str, Any]:
    """What the indexes of ZVC and CSR add to a real array, half of it zeros, as shares of its size (section IV-E)."""
    array = array_of(SparseTensor(2**22, 0.5), np.random.default_rng(0))
    nonzero = int(np.count_nonzero(array)) * array.itemsize
    zvc, csr = Zvc(), Csr()
    # Beside its indexes CSR counts the elements of each row, of which the paper says nothing.
    counts = array.size // row_elements(csr.window, array.itemsize) * COUNT_BYTES
    return {
        "zvc": (zvc.compressed_size(array) - nonzero) / array.nbytes,
        "csr": (csr.compressed_size(array) - nonzero - counts) / array.nbytes,
    }


CHECKS = {"tensors": tensors, "links": links, "overhead": overhead}
