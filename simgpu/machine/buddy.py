"""Kernels that also read and write buddy memory, over a shared link.

Memory-entries that do not fit their target are partly in buddy memory (Buddy Compression, section 3.2). A kernel ends
when its work on the device and its bytes over the link have both ended. The bytes start after the part of the kernel
that link traffic cannot overlap; that part is not published, the node sets it (`gpu.buddy.overlap`).

A kernel with an idle link uses the closed form, `CompressedMemory.alone_ns`, and is an ordinary launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import simpy

from simgpu.graph.compressed import CompressedMemory
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.machine.code import IN, OUT
from simgpu.machine.engines import Engines, last_of
from simgpu.machine.stream import HOLDS_DRAM, Stream
from simgpu.program.instructions import DEVICE, Copy, Program


@dataclass(frozen=True, slots=True)
class BuddyLaunch:
    """Runs a kernel that uses buddy memory.

    device_ns: time on the device. head_ns: time before its bytes start to pass the link. read, written: those bytes.
    """

    device_ns: int
    head_ns: int
    read: int
    written: int

    def __call__(self, stream: Stream, engines: Engines) -> None:
        """Start the kernel; the stream's `fire` is called when all of it has ended."""
        env = stream.env
        stream.starts.append(int(env.now))
        demand = stream.ops[stream.pc][2]
        if demand:
            stream.holds = HOLDS_DRAM
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
    """A graph's use of a shared link to buddy memory; see `simgpu.machine.translate.SharedLink`."""

    memory: CompressedMemory

    def launch(self, kernel: int) -> BuddyLaunch | None:
        """The function that starts a kernel, None for one without bytes over the link."""
        demand = self.memory.demands[kernel]
        if not (demand.read or demand.written):
            return None
        head = self.memory.head_ns(kernel)
        return BuddyLaunch(self.memory.device_ns[kernel], head, demand.read, demand.written)

    def overflow(self, block: int) -> int:
        """Bytes of a block in buddy memory, 0 for a block outside the compressed memory."""
        return self.memory.overflow[block] if block < len(self.memory.overflow) else 0


def shared_link(program: Program, graph: TaskGraph, node: NodeSpec) -> SharedBuddyLink | None:
    """The link to buddy memory if kernels share it, else None.

    They share it with each other where several run at once, with copies over the same link, and with copies of blocks
    that lie in buddy memory.
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
        if isinstance(instruction, Copy) and DEVICE in (instruction.src, instruction.dst)
    }
    if any(map(link.overflow, copied)):
        return link
    same = node.gpu.buddy.link is None
    others = len(graph.compute_streams) > 1 or (same and (copied or program.gpus > 1))
    return link if others and memory.uses_link else None
