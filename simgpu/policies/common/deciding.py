"""Policies that decide while the iteration runs (`simgpu.online`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from simgpu.graph.taskgraph import TaskGraph, Transform
from simgpu.graph.transforms import transformed
from simgpu.online.conductor import Conductor
from simgpu.online.decisions import Decider, Decision, Evict
from simgpu.online.view import Flight, Ints, View
from simgpu.policies.base import PlanContext, Policy, require_one_stream, require_undivided
from simgpu.program.instructions import Program


@dataclass(frozen=True)
class OnlinePolicy(Policy):
    """A policy whose `decider` is asked while the iteration runs.

    offloads: whether it uses other memories; what is persistent and does not fit begins and ends there then.
    transforms: of the graph on which it decides.
    """

    transforms: ClassVar[tuple[Transform, ...]] = ()
    offloads: ClassVar[bool] = True

    @property
    def frees(self) -> bool:
        """Whether blocks are freed when the framework frees them, or when memory is short."""
        return True

    @abstractmethod
    def decider(self, graph: TaskGraph) -> Decider:
        """What decides in one iteration of a graph, to which the transforms have been applied."""

    def plan(self, context: PlanContext) -> Program:
        """What happened in an iteration, as a program."""
        require_one_stream(context.graph, self.name)
        require_undivided(context.graph, self.name)
        graph = transformed(context.graph, self.transforms)
        conductor = Conductor(
            graph,
            context.node,
            context.budget,
            self.decider(graph),
            frees=self.frees,
            sees_future=self.clairvoyant,
            offloads=self.offloads,
            resident=context.resident(graph),
        )
        program = conductor.run()
        return replace(program, transforms=self.transforms)


class Quiet:
    """A decider that does nothing of its own accord; to be derived from."""

    def short(self, view: View, need: int) -> Iterable[Decision]:
        """Nothing."""
        return ()

    def before(self, view: View, kernel: int) -> Iterable[Decision]:
        """Nothing."""
        return ()

    def ended(self, view: View, flight: Flight) -> Iterable[Decision]:
        """Nothing."""
        return ()

    def left(self, block: int) -> None:
        """Nothing to note."""

    def came(self, block: int) -> None:
        """Nothing to note."""


@dataclass(frozen=True)
class EvictingPolicy(OnlinePolicy):
    """Evicts what ranks lowest, until there is enough memory; override `ranks`.

    It goes to the host; where that is full, to the next memory that is linked to the device.
    """

    def decider(self, graph: TaskGraph) -> Decider:
        """Evicts by rank."""
        return _ByRank(self)

    @abstractmethod
    def ranks(self, view: View, blocks: Ints) -> NDArray[np.float64] | Ints:
        """The rank of each of these blocks; the lowest leaves first."""


class _ByRank(Quiet):
    def __init__(self, policy: EvictingPolicy) -> None:
        self._policy = policy

    def short(self, view: View, need: int) -> Iterator[Decision]:
        blocks = view.candidates()
        return evicted(view, blocks[self._policy.ranks(view, blocks).argsort(kind="stable")], need)


def evicted(view: View, blocks: Ints, need: int) -> Iterator[Decision]:
    """Evicts these blocks in order, until that gives `need` bytes; those for which no memory has room stay."""
    for b in map(int, blocks):
        if need <= 0:
            return
        if (to := view.place_for(b)) is not None:
            yield Evict(b, to)
            need -= int(view.sizes[b])
