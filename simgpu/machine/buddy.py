"""Kernels that also read and write buddy memory, over a shared link.

Memory-entries that do not fit their target are partly in buddy memory (Buddy Compression, section 3.2). A kernel ends
when its work on the device and its bytes over the link have both ended. The bytes start after the part of the kernel
that link traffic cannot overlap; that part is not published, the node sets it (`gpu.buddy.overlap`).

A kernel with an idle link uses the closed form, `CompressedMemory.alone_ns`, and is an ordinary launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import simpy

from simgpu.compression.buddy.traffic import over_link
from simgpu.graph.compressed import CompressedMemory
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.machine.dram import Dram
from simgpu.machine.engines import Engines
from simgpu.machine.flows import FlowNetwork, Path
from simgpu.machine.instants import InstantPhase
from simgpu.machine.simulator import Events, KernelStep, Stream
from simgpu.program.instructions import DEVICE, Copy, Program


@dataclass(frozen=True, slots=True)
class BuddyKernelStep:
    """Run a kernel that uses buddy memory.

    demand: DRAM bandwidth that it takes from copies, bytes per second. device_ns: time on the device. head_ns: time
    before its bytes start to pass the link. sizes: the paths and sizes of those bytes.
    """

    kernel: KernelStep
    demand: int
    dram: Dram
    device_ns: int
    head_ns: int
    flows: FlowNetwork
    sizes: tuple[tuple[Path, int], ...]

    def perform(self, stream: Stream) -> Events:
        """It ends when its time on the device and its bytes over the link have ended."""
        yield stream.turn(InstantPhase.START)
        since = stream.env.instant
        if self.demand:
            self.dram.take(self.demand)
        on_device = stream.env.timeout(self.device_ns)
        yield on_device & stream.env.process(self._over_link(stream.env))
        yield stream.turn(InstantPhase.END)
        stream.worked(self.kernel.kind, self.kernel.name, since)
        if self.demand:
            self.dram.take(-self.demand)

    def _over_link(self, env: simpy.Environment) -> Events:
        yield env.timeout(self.head_ns)
        yield env.all_of([self.flows.send(path, size) for path, size in self.sizes])


@dataclass(frozen=True, slots=True)
class SharedBuddyLink:
    """A graph's use of a link to buddy memory that others use too. header: bytes with each sector and the other way."""

    memory: CompressedMemory
    header: int = 0

    def step(self, kernel: KernelStep, demand: int, engines: Engines, gpu: int) -> BuddyKernelStep | None:
        """The step of a kernel, None for one without bytes over the link."""
        bytes_of = self.memory.demands[kernel.name]
        read, written = over_link(bytes_of.read, bytes_of.written, self.header)
        ways = zip(engines.buddy[gpu], (written, read), strict=True)
        sizes = tuple((path, size) for path, size in ways if size)
        flows = engines.flows
        if not sizes or flows is None:
            return None
        k = kernel.name
        head, device = self.memory.head_ns(k), self.memory.device_ns[k]
        return BuddyKernelStep(kernel, demand, engines.dram[gpu], device, head, flows, sizes)

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
    link = SharedBuddyLink(memory, node.gpu.buddy.packet_header)
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
