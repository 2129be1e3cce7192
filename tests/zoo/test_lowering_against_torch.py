"""The lowering against PyTorch itself: the same networks, traced under fake tensors, need the same bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'simgpu[record]'")

from simgpu.trace.model import BlockKind, Trace
from simgpu.trace.recorder import record
from simgpu.trace.stats import trace_stats
from simgpu.trace.zoo.catalogue import Value, build
from tests.zoo.networks import lowered
from tests.zoo.torch_networks import workload

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


def without_workspace(trace: Trace) -> Trace:
    blocks = (replace(block, bytes=0) if block.kind is BlockKind.WORKSPACE else block for block in trace.blocks)
    return replace(trace, blocks=tuple(blocks))


@pytest.mark.parametrize("name", NETWORKS)
def test_peaks_and_sizes_are_those_of_pytorch(name: str) -> None:
    network = build(name, **NETWORKS[name])
    theirs = trace_stats(without_workspace(record(lambda: workload(network, BATCH), batch=BATCH, gpu="v100")))
    ours = trace_stats(lowered(network, BATCH))
    assert ours.peak_recorded is not None and theirs.peak_recorded is not None
    assert ours.peak_needed is not None and theirs.peak_needed is not None
    assert ours.peak_recorded.bytes == theirs.peak_recorded.bytes
    assert ours.peak_needed.bytes == theirs.peak_needed.bytes
    size = [{kind.kind: kind.bytes for kind in stats.kinds} for stats in (ours, theirs)]
    for kind in (BlockKind.WEIGHT, BlockKind.OPTIMIZER_STATE, BlockKind.FEATURE_MAP):
        assert size[0][kind] == size[1][kind], kind
