"""A policy for a node with an SSD: what vDNN offloads moves on from the host, and returns before its prefetch."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, replace
from itertools import count

from simgpu.policies.base import PlanContext, Policy
from simgpu.policies.vdnn import Vdnn
from simgpu.program.instructions import D2H, H2D, HOST, Acquire, Await, Copy, Instruction, Program, Release, Signal
from simgpu.timeline.streams import StreamId, engine

SSD = "ssd"


@dataclass(frozen=True)
class Spill(Policy):
    """Offload as vDNN does, and keep the offloaded feature maps on an SSD behind the host."""

    name = "spill"
    summary = "vDNN's offloads, moved on from the host to an SSD"
    source = "this test"

    def plan(self, context: PlanContext) -> Program:
        return spilled(Vdnn().plan(context))


def spilled(program: Program) -> Program:
    """The program with every copy in host memory moved on to the SSD while it is not needed."""
    (segment,) = program.segments
    streams = dict(segment.streams)
    signals = [each.event for code in streams.values() for each in code if isinstance(each, Signal)]
    events, gone = count(max(signals, default=0) + 1), defaultdict[int, deque[int]](deque)
    offload, out, back, fetch, awaited = (list[Instruction]() for _ in range(5))
    for each in streams.get(D2H, ()):
        offload.append(each)
        if isinstance(each, Copy):
            b, arrived, left = (each.block,), next(events), next(events)
            offload.append(Signal(arrived))
            out += [Await(arrived), Acquire(b, SSD), Copy(*b, HOST, SSD), Release(b, HOST), Signal(left)]
            gone[each.block].append(left)
    for each in streams.get(H2D, ()):
        awaited += [each] if isinstance(each, Await) else []
        if isinstance(each, Copy):
            b, returned, left = (each.block,), next(events), gone[each.block].popleft()
            back += [*awaited, Await(left), Acquire(b, HOST), Copy(*b, SSD, HOST), Release(b, SSD), Signal(returned)]
            awaited = []
            fetch.append(Await(returned))
        fetch.append(each)
    streams |= {D2H: tuple(offload), H2D: tuple(fetch)}
    streams |= {StreamId(0, engine(HOST, SSD)): tuple(out), StreamId(0, engine(SSD, HOST)): tuple(back)}
    return replace(program, segments=(replace(segment, streams=streams),))
