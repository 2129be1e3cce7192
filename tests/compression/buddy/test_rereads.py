"""Inputs that convolutions read several times, against DeLTA's formula worked out for AlexNet."""

from __future__ import annotations

import pytest

from simgpu.compression.buddy.rereads import columns, rereads
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.nodes import load_node
from simgpu.workloads.modelled import build_trace


@pytest.fixture(scope="module")
def alexnet() -> TaskGraph:
    return TaskGraph.of(build_trace("alexnet", batch=4, gpu=load_node("p100").gpu, framework="cudnn"))


@pytest.mark.parametrize(
    ("channels", "groups", "times"),
    [(1, 1, 1), (32, 1, 1), (96, 1, 1), (128, 1, 1), (129, 1, 2), (384, 1, 3), (384, 2, 2)],
)
def test_a_column_has_at_most_128_channels_of_one_group(channels: int, groups: int, times: int):
    assert columns(channels, groups) == times


def test_forward_and_data_gradient_read_their_map_again_and_nothing_else_does(alexnet: TaskGraph):
    found = {}
    for kernel in alexnet.kernels:
        for b, times in rereads(alexnet, kernel).items():
            found[kernel.id] = alexnet.blocks[b].id, times
    # Groups: two of conv2, conv4 and conv5.
    assert found == {
        "conv3.conv2d": ("pool2", 3),
        "conv4.conv2d": ("conv3", 2),
        "conv5.conv2d_backward_data": ("relu5.grad", 2),
        "conv4.conv2d_backward_data": ("relu4.grad", 2),
        "conv3.conv2d_backward_data": ("relu3.grad", 2),
    }
