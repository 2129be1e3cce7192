"""The reference machine with a buddy memory: kernels also transfer bytes over a link, as do copies of buddy sectors.

Written from the rules alone: a kernel ends when its work on the device and its bytes in both directions have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import Duplex, LinkSpec, NodeSpec, SwitchSpec
from simgpu.program.instructions import Copy, Decode, Encode, Launch, Program
from tests.semantics.reference import Flow, Line, ReferenceMachine
from tests.semantics.reference_links import fair_rates

#: Whether the direction is device-to-host, and the bytes.
Passing = tuple[bool, int]


def path(node: NodeSpec, gpu: int, out: bool, *, alone: bool) -> tuple[str, ...]:
    """Every link between a GPU and the host, its own first."""
    links = [_way("link", gpu, node.link, out)]
    if not alone:
        links += [_way("switch", n, s, out) for n, s in enumerate(node.switches) if gpu in s.gpus]
    return tuple(links)


def buddy_path(node: NodeSpec, gpu: int, out: bool, *, alone: bool) -> tuple[str, ...]:
    own = None if node.gpu.buddy is None else node.gpu.buddy.link
    return path(node, gpu, out, alone=alone) if own is None else (_way("buddy", gpu, own, out),)


def _way(what: str, number: int, of: LinkSpec | SwitchSpec, out: bool) -> str:
    return f"{what} {number} {'both' if of.duplex is Duplex.HALF else 'out' if out else 'in'}"


def capacity(node: NodeSpec, link: str) -> int:
    what, number, way = link.split()
    own = None if node.gpu.buddy is None else node.gpu.buddy.link
    of: Any = {"link": node.link, "buddy": own}.get(what) or node.switches[int(number)]
    return {"out": of.d2h_bandwidth, "in": of.h2d_bandwidth}.get(way) or max(of.d2h_bandwidth, of.h2d_bandwidth)


class BuddyMachine(ReferenceMachine):
    """due: later events of lines: the time, and the bytes whose transfer then begins (none if a part has ended).

    parts: by rank of the line, the number of its parts that have not ended.
    """

    def __init__(self, program: Program, graph: TaskGraph, node: NodeSpec, **more: Any) -> None:
        super().__init__(program, graph, node, **more)
        self.due: list[tuple[int, Line, Sequence[Passing]]] = []
        self.parts: dict[int, int] = {}

    def run(self) -> bool:
        while True:
            self._settle()
            ends = [line.until for line in self.lines if line.doing in ("kernel", "copy", "latency")]
            ends += [self._finish(flow) for flow in self.flows] + [at for at, _, _ in self.due]
            if not ends:
                return all(line.here is None for line in self.lines)
            self.now = min(ends)
            self._complete()

    def _start(self) -> bool:
        line = self._first((Launch, Encode, Decode, Copy))
        work = line.here[0] if line is not None and line.here is not None else None
        memory = self.graph.compressed
        if line is None or not isinstance(work, Launch) or memory is None:
            return super()._start()
        demand = memory.demands[work.kernel]
        moves = [each for each in ((False, demand.read), (True, demand.written)) if each[1]]
        if not moves:
            return super()._start()
        device = memory.device_ns[work.kernel]
        head = device - device * memory.hidden // 10**6
        line.doing, line.begun = "parts", self.now
        self.parts[line.rank] = 1 + len(moves)
        self.due += [(self.now + device, line, ()), (self.now + head, line, moves)]
        self._begin_access(line)
        return True

    def _complete(self) -> None:
        for each in [each for each in self.due if each[0] == self.now]:
            self.due.remove(each)
            _, line, moves = each
            for out, size in moves:
                self._pass(line, out, size)
            if not moves:
                self._part_ended(line)
        for line in self.lines:
            if line.doing == "latency" and line.until == self.now:
                self._copy(line)
        done = [flow for flow in self.flows if self._finish(flow) <= self.now]
        for flow in done:
            self.flows.remove(flow)
            self._part_ended(flow.line)
        if done:
            self._share()
        for line in self.lines:
            if line.doing in ("kernel", "copy") and line.until == self.now:
                self._end(line)

    def _copy(self, line: Line) -> None:
        copy = line.here[0]  # type: ignore[index]
        out, gpu = copy.src == "device", line.stream.gpu
        cap = self.node.link.d2h_bandwidth if out else self.node.link.h2d_bandwidth
        links = path(self.node, gpu, out, alone=self.gpus == 1)
        size = Fraction(self.graph.copy_sizes[copy.block])  # type: ignore[union-attr]
        memory = self.graph.compressed
        overflow = memory.overflow if memory is not None else ()
        beyond = overflow[copy.block] if copy.block < len(overflow) else 0  # type: ignore[union-attr]
        line.doing, self.parts[line.rank] = "parts", 1 + (beyond > 0)
        self.flows.append(Flow(line, cap, links, size, self.now))
        self._share()
        if beyond:
            self._pass(line, not out, beyond)

    def _pass(self, line: Line, out: bool, size: int) -> None:
        links = buddy_path(self.node, line.stream.gpu, out, alone=self.gpus == 1)
        cap = min(capacity(self.node, link) for link in links)
        self.flows.append(Flow(line, cap, links, Fraction(size), self.now))
        self._share()

    def _part_ended(self, line: Line) -> None:
        self.parts[line.rank] -= 1
        if not self.parts[line.rank]:
            line.doing, line.until = "copy", self.now

    def _share(self) -> None:
        most = {link: capacity(self.node, link) for flow in self.flows for link in flow.links}
        rates = fair_rates([(flow.cap, flow.links) for flow in self.flows], most)
        for flow, rate in zip(self.flows, rates, strict=True):
            if rate != flow.rate:
                flow.left -= Fraction(flow.rate * (self.now - flow.since), 10**9)
                flow.since, flow.rate = self.now, rate
