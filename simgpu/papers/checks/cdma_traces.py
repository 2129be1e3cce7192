"""The traces of cDMA's figure 13, also changed for experiments, and the layers of their feature maps."""

from __future__ import annotations

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
def study(gpu: str, speed: float = 1.0, copies: bool = False) -> Study:
    """The study of figure 13 for a GPU.

    speed: factor on its arithmetic and memory rates, which its kernels follow. copies: whether concatenations copy.
    """
    from simgpu.experiments.scenarios.load_study import load_study

    name = f"cdma-13-{gpu}"
    of = load_study(name)
    changes: dict[str, object] = {}
    if speed != 1:
        node = next(run.node for run in of.runs if run.policy[0] == "vdnn")
        for key, unit in _RATES.items():
            changes[f"node.gpu.{key}"] = f"{round(getattr(node.gpu, key) * speed / 1000)} {unit}"
    if copies:
        changes |= {f"traces.{label}.framework": "cudnn" for label in of.traces}
    return load_study(name, changes) if changes else of


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
