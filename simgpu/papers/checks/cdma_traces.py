"""The traces of cDMA's figure 13, and functions that change them for experiments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from simgpu.trace.model import Kernel, Phase, Trace
from simgpu.trace.operators import OpClass, op_class

if TYPE_CHECKING:
    from simgpu.experiments.scenarios.study import Study

#: The GPUs of figure 13; each has a study.
GPUS = ("maxwell", "pascal")
#: Peak rates that are scaled for a slower GPU, with their units.
_RATES = {"fp32_rate": "kFLOP/s", "dram_bandwidth": "kB/s"}


@lru_cache(maxsize=4)
def study(gpu: str, speed: float = 1.0) -> Study:
    """The study of figure 13 for a GPU. speed: factor on its arithmetic and memory rates, which its kernels follow."""
    from simgpu.experiments.scenarios.load_study import load_study

    name = f"cdma-13-{gpu}"
    if speed == 1:
        return load_study(name)
    node = next(run.node for run in load_study(name).runs if run.policy[0] == "vdnn")
    slower = {
        f"node.gpu.{key}": f"{round(getattr(node.gpu, key) * speed / 1000)} {unit}" for key, unit in _RATES.items()
    }
    return load_study(name, slower)


def joined_in_place(trace: Trace) -> Trace:
    """The trace as if branches wrote their parts directly into the result of a concatenation, as cuDNN's strides allow.

    Concatenations have no kernel, and the parts and their concatenation, which vDNN would both offload, are one feature
    map.

    >>> trace = study("maxwell").traces["SqueezeNet"]
    >>> len(trace.blocks) - len(joined_in_place(trace).blocks)
    16
    """
    joins = [kernel for kernel in trace.kernels if kernel.op == "cat" and kernel.phase is Phase.FORWARD]
    concatenated = {part: join.writes[0] for join in joins for part in join.reads}

    def root(block: str) -> str:
        while block in concatenated:
            block = concatenated[block]
        return block

    copies = {join.id for join in joins}
    kernels = tuple(
        replace(kernel, reads=_distinct(map(root, kernel.reads)), writes=_distinct(map(root, kernel.writes)))
        for kernel in trace.kernels
        if kernel.id not in copies
    )
    last = {block: kernel.id for kernel in kernels for block in (*kernel.reads, *kernel.writes)}
    joined = set(map(root, concatenated))
    blocks = tuple(
        replace(block, release=last[block.id]) if block.id in joined else block
        for block in trace.blocks
        if block.id not in concatenated
    )
    sparsity = tuple(sample for sample in trace.sparsity if sample.block not in concatenated)
    return replace(trace, kernels=kernels, blocks=blocks, sparsity=sparsity)


def _distinct(blocks: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(blocks))


def writers_of(trace: Trace) -> dict[str, Kernel]:
    """The first forward kernel that writes each feature map."""
    writers: dict[str, Kernel] = {}
    for kernel in trace.kernels:
        if kernel.phase is Phase.FORWARD:
            for block in kernel.writes:
                writers.setdefault(block, kernel)
    return writers


def layers_of(trace: Trace) -> dict[str, OpClass]:
    """The class of the layer that writes each feature map with known zeros.

    A dropout's result belongs to the layer before it, because dropout is in place in Caffe.
    """
    by, layers = writers_of(trace), {}
    for block in dict.fromkeys(sample.block for sample in trace.sparsity):
        kernel = by[block]
        while op_class(kernel.op) is OpClass.DROPOUT:
            kernel = by[kernel.reads[0]]
        layers[block] = op_class(kernel.op)
    return layers
