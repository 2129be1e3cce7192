"""`g10`: smart tensor migrations over device, host and flash (Zhang et al., MICRO 2023), as in the authors' simulator.

Before the iteration, G10 knows when each tensor is used. Where memory would exceed the device's, tensors leave between
two uses, one after the other, by the benefit of that: bytes times the time for which memory exceeds the budget while
they are away. A tensor goes to flash, unless flash is busy just then and the host has room; it leaves right after its
use, and comes back as early as memory allows. What is missing all the same is copied on demand; where memory is short
all the same, what was used longest ago leaves.

The rules are those of the simulator that its authors published (platformxlab/G10); the text of the paper was not at
hand. Here it differs:

* A copy back waits until there is memory for it; the simulator's may push out other pages.
* A block is copied whole, and is there when its last byte is; the simulator copies pages, and a kernel runs while the
  last of its pages arrive.
* Weights and optimizer state are in device memory when an iteration begins and ends, as far as they fit. In the
  simulator a weight may be away from its last use in an iteration to its first use in the next.
* A gap that is too short for both copies is passed over; in the simulator such a gap ends the search where it is best.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from simgpu.errors import InputError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.online.decisions import Decider, Decision, Evict, Fetch
from simgpu.online.view import View
from simgpu.policies.base import parameter
from simgpu.policies.common.deciding import OnlinePolicy, Quiet, evicted
from simgpu.policies.g10.migrations import MigrationPlan, TierMigration


@dataclass(frozen=True)
class G10(OnlinePolicy):
    """Scheduled migrations to host and flash."""

    name = "g10"
    clairvoyant = True
    summary = "migrates tensors to flash and host between uses, scheduled by the memory and bandwidth that is left"
    source = "Zhang et al., G10, MICRO 2023, by its authors' simulator, github.com/platformxlab/G10"

    target: float = parameter(0.99, "migrations are scheduled until memory is within this part of the budget")
    fault_us: int = parameter(45, "time of a page fault, which estimates of copies include, in microseconds")

    def decider(self, graph: TaskGraph) -> Decider:
        """Migrates by a schedule. Raises `InputError` for parameters out of range."""
        if not 0 < self.target <= 1:
            raise InputError.single("", "parameters.target", f"{self.target} is no part", "give more than 0, at most 1")
        if self.fault_us < 0:
            raise InputError.single("", "parameters.fault_us", f"{self.fault_us} is negative", "give 0 or more")
        return _Migrating(self)


class _Migrating(Quiet):
    def __init__(self, policy: G10) -> None:
        self._policy = policy
        self._leaving: defaultdict[int, list[TierMigration]] = defaultdict(list)
        self._returning: defaultdict[int, list[int]] = defaultdict(list)
        #: Blocks that are to come back, in order, and for which there has been no memory yet.
        self._due: list[int] = []

    def before(self, view: View, kernel: int) -> Iterator[Decision]:
        if kernel == 0:
            self._plan(view)
        for each in self._leaving[kernel]:
            if view.here[each.block] and not view.busy[each.block] and (to := self._place(view, each)):
                yield Evict(each.block, to)
        self._due += self._returning[kernel]
        for b in list(self._due):
            if any(b in there for there in view.away.values()) and not view.here[b] and not view.busy[b]:
                if view.sizes[b] > view.free:
                    return
                self._due.remove(b)
                yield Fetch(b)
            elif view.here[b] or view.busy[b]:
                self._due.remove(b)

    def short(self, view: View, need: int) -> Iterator[Decision]:
        blocks = view.candidates()
        return evicted(view, blocks[np.argsort(view.last_use_ns[blocks], kind="stable")], need)

    def _plan(self, view: View) -> None:
        target = int(view.budget * self._policy.target)
        fault_ns = self._policy.fault_us * 1000
        for each in MigrationPlan(view.graph, view.node, view.budget, target, fault_ns, view.resident).migrations():
            self._leaving[each.leaves].append(each)
            self._returning[each.returns].append(each.block)

    def _place(self, view: View, migration: TierMigration) -> str | None:
        """The planned memory, or another one where that has no room now."""
        memory, b = migration.memory, migration.block
        return memory if view.has_room(memory, b) else view.place_for(b)
