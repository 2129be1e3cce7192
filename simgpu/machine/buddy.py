"""Kernels that also read and write buddy memory, over a link that others use too.

What does not fit a target comes from buddy memory (Buddy Compression, section 3.2), so a kernel ends when its work on
the device and its bytes over the link have both ended; these begin to pass when the part of its time is over beside
which they do not. How much of them a kernel hides is not published; the node says it (`gpu.buddy.overlap`).

A kernel with the link to itself takes the closed form, `CompressedMemory.alone_ns`, and is an ordinary launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import simpy

from simgpu.graph.compressed import CompressedMemory
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.machine.code import IN, OUT
from simgpu.machine.engines import last_of
from simgpu.machine.stream import TAKES_DRAM, Stream
from simgpu.program.instructions import CopyIn, CopyOut, Program


@dataclass(frozen=True, slots=True)
class BuddyLaunch:
    """Drives a kernel: nanoseconds on the device and before its bytes pass, bytes from and to buddy memory."""

    device_ns: int
    head_ns: int
    read: int
    written: int

    def __call__(self, stream: Stream) -> None:
        """Begin; the stream's `fire` is called when all has ended."""
        env, engines = stream.env, stream.engines
        stream.starts.append(int(env.now))
        demand = stream.ops[stream.pc][2]
        if demand:
            stream.direction = TAKES_DRAM
            engines.take_dram(demand)
        sizes = [(direction, size) for direction, size in ((IN, self.read), (OUT, self.written)) if size]
        ended = last_of(1 + len(sizes), stream.fire)
        flows = engines.flows
        assert flows is not None

        def on_device(_: simpy.Event) -> None:
            ended()
            flows.settled()

        def over_link(_: simpy.Event) -> None:
            for direction, size in sizes:
                engines.pass_buddy(direction, size, ended)
            flows.settled()

        env.timeout(self.device_ns).callbacks.append(on_device)
        env.timeout(self.head_ns).callbacks.append(over_link)


@dataclass(frozen=True, slots=True)
class SharedBuddyLink:
    """The kernels and blocks of a graph on a link that they share; see `simgpu.machine.code.SharedLink`."""

    memory: CompressedMemory

    def launch(self, kernel: int) -> BuddyLaunch | None:
        """What drives a kernel, None for one that moves nothing over the link."""
        demand = self.memory.demands[kernel]
        if not (demand.read or demand.written):
            return None
        head = self.memory.head_ns(kernel)
        return BuddyLaunch(self.memory.device_ns[kernel], head, demand.read, demand.written)

    def overflow(self, block: int) -> int:
        """Bytes of a block that lie in buddy memory; none of what is no part of the compressed memory."""
        return self.memory.overflow[block] if block < len(self.memory.overflow) else 0


def shared_link(program: Program, graph: TaskGraph, node: NodeSpec) -> SharedBuddyLink | None:
    """The link to buddy memory if kernels have to share it, else None.

    They share it with each other where several run at once, with copies that use the same link, and with copies of
    what lies in buddy memory itself.
    """
    memory = graph.compressed
    if memory is None or node.gpu.buddy is None:
        return None
    link = SharedBuddyLink(memory)
    copied = {
        instruction.block
        for segment in program.segments
        for code in segment.streams.values()
        for instruction in code
        if isinstance(instruction, CopyOut | CopyIn)
    }
    if any(map(link.overflow, copied)):
        return link
    same = node.gpu.buddy.link is None
    others = len(graph.compute_streams) > 1 or (same and (copied or program.gpus > 1))
    return link if others and memory.uses_link else None
