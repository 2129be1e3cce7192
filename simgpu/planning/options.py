"""The options of each feature map, and vectors that choose among them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from simgpu.garbage import no_collection
from simgpu.graph.encodings import Encoding
from simgpu.graph.recompute import Ancestry
from simgpu.graph.saved import Activation, activations
from simgpu.graph.taskgraph import TaskGraph

#: The chosen option of each feature map, by number.
Vector = tuple[int, ...]


class Action(IntEnum):
    """The three actions with HOME's numbers (section 3.3)."""

    KEEP = 0
    SWAP = 1
    RECOMPUTE = 2


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a feature map.

    ahead: for a swap, layer steps between fetch and next use. encoding: the form in which it is copied, None without
    encoding.
    """

    action: Action
    ahead: int = 1
    encoding: Encoding | None = None


KEEP = Option(Action.KEEP)
SWAP = Option(Action.SWAP)
RECOMPUTE = Option(Action.RECOMPUTE)


@dataclass(frozen=True)
class Decisions:
    """The feature maps of a graph and the options of each.

    A vector has one entry per feature map, the number of one of its options. HOME's options are keep, swap and, for
    feature maps that can be recomputed, recompute: 0, 1 and 2.

    >>> from simgpu.trace.chain import chain
    >>> graph = TaskGraph.of(chain([5, 7, 9, 9], [10, 14, 18, 18], [100, 200, 300, 400]))
    >>> decisions = Decisions.of(graph)
    >>> decisions.choices, [option.action.name for option in decisions.options[0]]
    ((3, 3), ['KEEP', 'SWAP', 'RECOMPUTE'])
    """

    maps: tuple[Activation, ...]
    options: tuple[tuple[Option, ...], ...]

    @classmethod
    @no_collection()
    def of(cls, graph: TaskGraph) -> Decisions:
        """Keep, swap and recompute for every feature map that can be recomputed, keep and swap for the others."""
        maps, ancestry = activations(graph), Ancestry.of(graph)
        can = [ancestry.why_not(each.block) is None for each in maps]
        return cls(maps, tuple((KEEP, SWAP, RECOMPUTE) if again else (KEEP, SWAP) for again in can))

    def with_options(self, more: Iterable[Iterable[Option]]) -> Decisions:
        """These decisions with more options appended for each feature map."""
        return Decisions(self.maps, tuple((*own, *new) for own, new in zip(self.options, more, strict=True)))

    @property
    def choices(self) -> tuple[int, ...]:
        """The number of options of each feature map."""
        return tuple(map(len, self.options))

    def number_of(self, position: int, option: Option) -> int | None:
        """The number of an option of the feature map at a position, None if it does not have it."""
        own = self.options[position]
        return own.index(option) if option in own else None


def fetch_kernel(graph: TaskGraph, after: int, needed: int, ahead: int) -> int:
    """The kernel with which a block is fetched `ahead` layer steps before the step of kernel `needed`.

    Never before kernel `after` has ended, its last use.
    """
    layers = graph.layers
    return max(layers.steps[max(layers.step_of[needed] - ahead, 0)].first, after + 1)
