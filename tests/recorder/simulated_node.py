"""A node on which several GPUs copy at the same time, without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from simgpu.hardware.spec import Duplex, GpuSpec, HostSpec, LinkSpec, NodeSpec, SwitchSpec
from simgpu.machine.flows import max_min_rates, paths_of
from simgpu.recorder.machine.bandwidth import CopyDirection

GB = 10**9


def fair_rates(where: NodeSpec, gpus: Sequence[int], directions: Sequence[int]) -> list[int]:
    """Max-min fair rates of GPUs that copy from the device (0), to it (1) or both at once."""
    capacities, paths = paths_of(where, where.gpus)
    flows = [paths[gpu][direction] for gpu in gpus for direction in directions]
    return max_min_rates(flows, [10**15] * len(flows), capacities)


@dataclass
class SimulatedNode:
    """A node whose copies share its links at max-min fair rates."""

    node: NodeSpec
    measured: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def count(self) -> int:
        return self.node.gpus

    def times_together(
        self, gpus: Sequence[int], directions: Sequence[CopyDirection], size: int, copies: int
    ) -> list[list[int]]:
        self.measured.append(tuple(gpus))
        rates = fair_rates(self.node, gpus, [way is CopyDirection.IN for way in directions])
        return [[size * GB // rate] * copies for rate in rates]


def node(
    gpus: int, switches: Sequence[SwitchSpec] = (), memory: int | None = None, link: tuple[int, int] = (25, 20)
) -> NodeSpec:
    wire = LinkSpec("wire", link[0] * GB, link[1] * GB)
    host = HostSpec(memory_bandwidth=None if memory is None else memory * GB)
    return NodeSpec("node", GpuSpec("gpu", 1), wire, host, gpus=gpus, switches=tuple(switches))


def switch(gpus: Sequence[int], d2h: int, h2d: int, duplex: Duplex = Duplex.FULL) -> SwitchSpec:
    return SwitchSpec(tuple(gpus), d2h * GB, h2d * GB, duplex)
