"""What a program's blocks need of the machine where the program does not move them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import simpy

from simgpu.errors import ProgramError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.machine.lanes import Lanes, with_lanes
from simgpu.machine.stream import Memory
from simgpu.machine.paged import Faults
from simgpu.machine.remote import RemoteAccess
from simgpu.memory.paged import Reclaim
from simgpu.program.instructions import Program
from simgpu.program.paging import Paged


class Unmoved(Protocol):
    """Drives the kernels of such a program.

    graph: as the machine runs it. memory: the GPU's; host: the host's, as far as blocks lie there. lanes: what moves
    for kernels. settled: must be set, and is called after every event that no stream hears of.
    """

    graph: TaskGraph
    memory: Memory
    host: Memory
    lanes: Lanes
    settled: Callable[[], None]

    def launch(self, kernel: int) -> Callable[[Any], None]:
        """What begins that kernel, given its stream."""
        ...

    def notes(self, iteration: int) -> tuple[str, ...]:
        """What there is to say of an iteration."""
        ...


def unmoved_blocks(
    program: Program,
    graph: TaskGraph,
    node: NodeSpec,
    env: simpy.Environment,
    capacity: int | None,
    reclaim: Reclaim,
) -> Unmoved | None:
    """What drives the kernels of a program, None if it moves its blocks itself.

    Raises `ProgramError` for several GPUs.
    """
    if program.residency is None:
        return None
    if program.gpus > 1:
        raise ProgramError("blocks that the program does not move are those of one GPU; it uses several")
    lanes = Lanes(with_lanes(program.streams))
    if isinstance(program.residency, Paged):
        return Faults(env, graph, node, program.residency, lanes, capacity, reclaim)
    return RemoteAccess(env, graph, node, lanes, capacity)
