"""The lowering compared with PyTorch: the same networks, traced with fake tensors, need the same bytes and time."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

from simgpu.hardware.nodes import load_node
from simgpu.recorder import record
from simgpu.trace.model import BlockKind, Phase, Trace
from simgpu.trace.stats import trace_stats
from simgpu.workloads.catalogue import Value, build
from simgpu.workloads.modelled import trace_of
from tests.sets import slow_except
from tests.workloads.zoo.networks import lowered
from tests.workloads.zoo.torch_networks import workload

BATCH = 4
#: Networks with every kind of layer but local response norm (PyTorch makes it of eight smaller kernels), long
#: short-term memory (a fused kernel that exists on a GPU alone) and crops of transposed convolutions.
NETWORKS: dict[str, dict[str, Value]] = {
    "alexnet": {"grouped": False},
    "vgg11": {},
    "googlenet": {"batch_norm": True},
    "squeezenet1.1": {},
    "mobilenet": {},
    "densenet121": {},
    "resnet50": {},
    "resnet20": {},
    "unet": {},
    "bert-base": {},
    "vit-base": {},
}


@cache
def followed(name: str) -> Trace:
    network = build(name, **NETWORKS[name])
    return record(lambda: workload(network, BATCH), batch=BATCH, gpu="v100", hold_output=True)


def without_workspace(trace: Trace) -> Trace:
    blocks = (replace(block, bytes=0) if block.kind is BlockKind.WORKSPACE else block for block in trace.blocks)
    return replace(trace, blocks=tuple(blocks))


#: A linear layer gives its input's gradient as a view, into which PyTorch adds no other; the lowering does, and so its
#: peak is 2.1% too small.
SUMMED_INTO_VIEWS = pytest.mark.xfail(reason="gradients are added into views, which PyTorch does not", strict=True)
LONG = ("densenet121", "bert-base", "googlenet", "resnet50", "vit-base")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[
                *([SUMMED_INTO_VIEWS] if name == "bert-base" else []),
                *([pytest.mark.slow] if name in LONG else []),
            ],
        )
        for name in NETWORKS
    ],
)
def test_peaks_and_sizes_equal_those_of_pytorch(name: str) -> None:
    expected = trace_stats(without_workspace(followed(name)))
    simulated = trace_stats(lowered(build(name, **NETWORKS[name]), BATCH))
    assert simulated.peak_recorded is not None and expected.peak_recorded is not None
    assert simulated.peak_needed is not None and expected.peak_needed is not None
    assert simulated.peak_recorded.bytes == expected.peak_recorded.bytes
    assert simulated.peak_needed.bytes == expected.peak_needed.bytes
    size = [{kind.kind: kind.bytes for kind in stats.kinds} for stats in (simulated, expected)]
    for kind in (BlockKind.WEIGHT, BlockKind.OPTIMIZER_STATE, BlockKind.ACTIVATION):
        assert size[0][kind] == size[1][kind], kind


_COPIES = {"clone", "contiguous", "copy_"}


@pytest.mark.parametrize("name", slow_except(NETWORKS, *({*NETWORKS} - {*LONG} | {"bert-base"})))
def test_every_phase_takes_as_long_as_the_operators_of_pytorch(name: str) -> None:
    """Within 1% without copies (U-Net: PyTorch crops each side separately, -0.7%); permutes of attention also copy in
    backward (+1.5% with copies), and PyTorch copies more in AlexNet (-1.4%)."""
    network = build(name, **NETWORKS[name])
    simulated = trace_of(network, batch=BATCH, gpu=load_node("v100").gpu)
    for phase in Phase:
        (mine, copied), (expected, as_copied) = (
            (
                sum(each.duration_ns for each in kernels if each.op.rpartition("::")[2] not in _COPIES),
                sum(each.duration_ns for each in kernels if each.op.rpartition("::")[2] in _COPIES),
            )
            for trace in (simulated, followed(name))
            for kernels in [[kernel for kernel in trace.kernels if kernel.phase is phase]]
        )
        assert mine == pytest.approx(expected, rel=0.01), phase
        assert mine + copied == pytest.approx(expected + as_copied, rel=0.016), phase
