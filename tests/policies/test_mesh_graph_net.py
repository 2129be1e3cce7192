"""Offloaded checkpoints of a MeshGraphNet: a GH200 loses less time to them than an A100.

Measured: NVIDIA/physicsnemo pull request 722, 15 processor layers in 15 checkpointed segments: with their inputs
offloaded, 0.63 of the speed on a DGX A100 and 0.84 on a GH200. The mesh, the precision and whether the copies overlap
are not stated, so only the direction is compared. Nothing is fitted. With 100,000 nodes in float32 it is 0.67 and 0.84
if compute waits for the copies, and 0.83 and 0.92 if they overlap; with 20,000, 0.67 and 0.84, and 0.84 and 0.93.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn

from simgpu.hardware.nodes import load_node
from simgpu.recorder import record
from simgpu.simulation.run import simulate

WIDTH, LAYERS = 128, 15


def mlp(width: int) -> nn.Sequential:
    """One hidden layer and a normalization, as in MeshGraphNet."""
    return nn.Sequential(nn.Linear(width, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))


class Layer(nn.Module):
    """Edges are updated from their two nodes, then nodes from the sum of their edges."""

    def __init__(self) -> None:
        super().__init__()
        self.edge, self.node = mlp(3 * WIDTH), mlp(2 * WIDTH)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor, ends: torch.Tensor) -> Any:
        begin, end = ends
        edges = edges + self.edge(torch.cat((edges, nodes[begin], nodes[end]), 1))
        sums = torch.zeros_like(nodes).index_add(0, end, edges)
        return nodes + self.node(torch.cat((nodes, sums), 1)), edges


class Mesh(nn.Module):
    """The processor; six edges for each node, as in a mesh of triangles."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.encoder, self.features, self.decoder = nn.Linear(6, WIDTH), nn.Linear(4, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, positions: torch.Tensor, distances: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        nodes, edges = self.encoder(positions[0]), self.features(distances[0])
        for layer in self.layers:
            nodes, edges = layer(nodes, edges, ends[0])
        result: torch.Tensor = self.decoder(nodes)[None]
        return result


def made(count: int, batch: int) -> tuple[Any, ...]:
    ends = torch.randint(count, (batch, 2, 6 * count))
    inputs = (torch.randn(batch, count, 6), torch.randn(batch, 6 * count, 4), ends)
    return Mesh(), inputs, torch.randn(batch, count, 4), nn.MSELoss()


def speed(name: str, nodes: int, inputs: str) -> float:
    """The speed with offloaded inputs of segments, relative to inputs on the device."""
    node = load_node(name)
    trace = record(partial(made, nodes), batch=1, gpu=node.gpu)
    segments = {"blocks": ["layers.*"]}
    plain = simulate(trace, node, "checkpoint", parameters=segments)
    offloaded = simulate(trace, node, "checkpoint", parameters={**segments, "inputs": inputs})
    return plain.iteration_ns / offloaded.iteration_ns


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [20_000, 100_000])
@pytest.mark.parametrize("inputs", ["waiting", "overlapped"])
def test_a_gh200_loses_less_to_offloaded_checkpoints_than_an_a100(nodes: int, inputs: str) -> None:
    a100, gh200 = speed("a100-80gb", nodes, inputs), speed("gh200", nodes, inputs)
    assert a100 < gh200 < 1
