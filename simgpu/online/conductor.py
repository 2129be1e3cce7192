"""Runs one iteration kernel after kernel, asks a policy what to do, and writes down what happens as a program.

The clock is that of the node's kernels and copies, each link for itself. It is exact where no link is shared and no
kernel slows copies down; elsewhere the policy decides with this clock, and the program runs as the node really is.

* Before each kernel the policy hears which copies have ended, and decides. It decides again where a kernel,
  or a block that comes back, needs more memory than is free or about to be.
* A block that a kernel needs and that is away is copied back, or its kernels run again: first those of what these need.
* A copy in another memory is kept until a kernel changes the block, or the framework frees it.
* What the framework has freed may be recomputed for others, and stays until the policy drops it.
* At the end, what was there at the begin is there again, and what the framework keeps to the end as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from simgpu.errors import ProgramError
from simgpu.garbage import no_collection
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import HOST, NodeSpec
from simgpu.online.decisions import Decider, Decision, Drop, Evict, Fetch, Wait
from simgpu.online.iteration import Iteration
from simgpu.online.memory import OnlineMemory
from simgpu.online.recomputation import Recomputation
from simgpu.online.view import View
from simgpu.program.instructions import InitialContents, Program, Segment

#: Decisions that the message about an illegal one lists.
_LISTED = 5


class _Rerun(NamedTuple):
    """A kernel that runs again to make a block. is_first, is_last: of the block's kernels."""

    kernel: int
    block: int
    is_first: bool
    is_last: bool


class Conductor:
    """One iteration. frees: whether blocks are freed when the framework frees them, or when memory is short.

    sees_future: whether the policy may ask for next uses. offloads: whether it uses other memories. resident: blocks
    that may neither be moved nor dropped.
    """

    @no_collection()
    def __init__(
        self,
        graph: TaskGraph,
        node: NodeSpec,
        budget: int,
        decider: Decider,
        *,
        frees: bool = True,
        sees_future: bool = False,
        offloads: bool = True,
        resident: Collection[int] = (),
    ) -> None:
        self.graph, self.decider, self._frees, self._offloads = graph, decider, frees, offloads
        self.recomputation = Recomputation.of(graph)
        self._iteration = Iteration.of(graph)
        self.view = View.of(graph, node, budget, sees_future=sees_future, resident=resident)
        self._reserve_staging()
        self.memory = OnlineMemory(self.view, decider.came, decider.left, self._ask_for)
        #: Each decision, and the kernel before which it was made.
        self._history: list[tuple[Decision, int]] = []
        self._heard = 0

    def _reserve_staging(self) -> None:
        """Keeps host memory for two copies on their way, where blocks can go on from there and it is limited.

        The second one can come while the first one goes on.
        """
        view, capacity = self.view, self.view.room[HOST]
        if view.node.behind_host and capacity is not None:
            largest = max((view.bytes_in(HOST, b) for b in range(len(view.sizes))), default=0)
            view.staging = min(2 * largest, capacity)
            view.room[HOST] = capacity - view.staging

    @property
    def answers(self) -> int:
        """The number of answers so far: one before each kernel, one for each copy that ended, and the decisions."""
        return self.view.kernel + self._heard + len(self._history)

    @no_collection()
    def run(self) -> Program:
        """The program of the iteration.

        Raises `OutOfMemoryError` where the policy gives up too little, and `ProgramError` for an illegal decision.
        """
        memory, lasting = self.memory, self._iteration.lasting
        self._begin()
        self._run_kernels()
        self._end()
        streams = {stream: memory.code[stream].code() for stream in sorted(memory.code, key=lambda each: each.rank)}
        homes: dict[str, list[int]] = {}
        for b, home in self.view.homes.items():
            homes.setdefault(home, []).append(b)
        contents = tuple(InitialContents(home, tuple(blocks)) for home, blocks in homes.items())
        resident = tuple(b for b in lasting if b not in self.view.homes)
        return Program((Segment(streams),), resident=resident, other_contents=contents)

    def _begin(self) -> None:
        """What is persistent is there; what of it is freed in mid-iteration gets its initial value."""
        view, memory = self.view, self.memory
        lasting, reinitialized = self._iteration.lasting, self._iteration.reinitialized
        view.free -= int(view.sizes[[*lasting, *reinitialized]].sum())
        if view.free < 0:
            self._find_homes(lasting)
        if view.free < 0:
            raise memory.out_of_memory("what is persistent, before the first kernel,", view.budget - view.free)
        there = [*(b for b in lasting if b not in view.homes), *reinitialized]
        if reinitialized:
            memory.compute.acquire(reinitialized)
            memory.compute.initialize(reinitialized)
        self._arrive(there)

    def _arrive(self, blocks: Sequence[int]) -> None:
        """The values of blocks are in device memory, of which some may not leave it."""
        self.memory.arrive(blocks)
        for b in self.view.resident.intersection(blocks):
            self.memory.lock(b)

    def _find_homes(self, lasting: list[int]) -> None:
        """Other memories for what is persistent and used last, until the rest fits into device memory."""
        view, uses = self.view, self.graph.uses
        for b in sorted(lasting, key=lambda b: -(uses[b][0] if uses[b] else len(self.graph.kernels))):
            may_leave = self._offloads and view.sizes[b] and b not in view.resident
            home = view.place_for(b) if may_leave else None
            if view.free < 0 and home is not None:
                view.homes[b] = home
                view.away[home].add(b)
                room = view.room[home]
                view.room[home] = None if room is None else room - view.bytes_in(home, b)
                view.free += int(view.sizes[b])

    def _end(self) -> None:
        """Brings back what is to be there, and frees the rest."""
        memory, lasting = self.memory, self._iteration.lasting
        for b, home in self.view.homes.items():
            memory.wait_until_left(b)
            if b not in self.view.away[home]:
                self._bring(b)
                memory.wait_for(b)
            memory.go_home(b, home)
        kept = [*self._iteration.survivors, *(b for b in lasting if b not in self.view.homes)]
        here = self.view.cells.here
        for b in kept:
            if here[b]:
                memory.lock(b)
            else:
                self._bring(b)
                memory.lock(b)
                memory.wait_for(b)
        memory.unlock(kept)
        memory.free(sorted(memory.existing().difference(lasting)))
        memory.forget_copies(kept)
        memory.finish()

    # --- kernels ----------------------------------------------------------------------------------------------

    def _run_kernels(self) -> None:
        """Runs the kernels of the trace with what they need, and asks before each of them."""
        graph, view, memory, iteration = self.graph, self.view, self.memory, self._iteration
        ended, before, last_use_ns = self.decider.ended, self.decider.before, view.cells.last_use_ns
        lists = iteration.used, iteration.births, iteration.initialized, graph.writes, graph.durations, iteration.deaths
        for k, (used, births, initialized, writes, duration, deaths) in enumerate(zip(*lists, strict=True)):
            view.kernel = k
            while memory.ended:
                self._heard += 1
                if decisions := ended(view, memory.ended.popleft()):
                    self._apply(decisions)
            if decisions := before(view, k):
                self._apply(decisions)
            if missing := memory.lock_present(used):
                self._use(missing)
            if births:
                memory.take(births, k)
                if initialized:
                    memory.compute.initialize(initialized)
            memory.forget_copies(writes)
            memory.compute.launch(k)
            memory.advance(duration)
            self._arrive(births)
            now_ns = view.now_ns
            for b in writes:
                last_use_ns[b] = now_ns
            memory.unlock(used)
            if deaths:
                memory.free(deaths if self._frees else [b for b in deaths if not view.can_drop[b]])
        view.kernel = len(graph.kernels)

    def _use(self, missing: list[int]) -> None:
        """Brings blocks into device memory, where they stay until they are unlocked."""
        memory = self.memory
        for b in missing:
            self._bring(b)
            memory.lock(b)
        for b in missing:
            memory.wait_for(b)

    def _bring(self, b: int) -> None:
        """Copies a block back, or recomputes it, unless it is there or on its way."""
        self.memory.wait_until_left(b)
        if self.view.cells.here[b] or b in self.memory.arriving:
            return
        if self.memory.source(b) is not None:
            self.memory.fetch(b)
        else:
            self._recompute(b)

    # --- running again ----------------------------------------------------------------------------------------

    def _recompute(self, target: int) -> None:
        """Runs the kernels of a block again, after those of what they read and what is missing."""
        view, memory = self.view, self.memory
        stack, held = self._reruns(target), dict[_Rerun, list[int]]()
        while stack:
            rerun = stack[-1]
            if rerun.is_first and rerun not in held and view.cells.here[rerun.block]:
                # Made meanwhile, as another result of a kernel.
                del stack[-len(self._reruns(rerun.block)) :]
                continue
            inputs = [r for r in self.recomputation.ancestry.inputs[rerun.kernel] if r != rerun.block]
            if rerun not in held:
                for r in inputs:
                    view.cells.last_use_ns[r] = view.now_ns
                held[rerun] = [r for r in inputs if view.cells.here[r]]
                for r in held[rerun]:
                    memory.lock(r)
            locked = held[rerun]
            missing = next((r for r in inputs if r not in locked), None)
            if missing is None:
                self._rerun(rerun)
                memory.unlock(locked)
                del held[stack.pop()]
            elif view.cells.here[missing] or memory.exists(missing):
                self._bring(missing)
                memory.lock(missing)
                memory.wait_for(missing)
                locked.append(missing)
            else:
                reruns = self._reruns(missing)
                assert reruns, "what cannot be recomputed is not dropped"
                stack += reruns

    def _reruns(self, b: int) -> list[_Rerun]:
        """The kernels that make a block, the first one last."""
        writers = self._writers_so_far(b)
        last = len(writers) - 1
        return [_Rerun(k, b, place == 0, place == last) for place, k in enumerate(writers)][::-1]

    def _rerun(self, rerun: _Rerun) -> None:
        """Runs a kernel again, whose inputs are there."""
        k, b, graph, memory = rerun.kernel, rerun.block, self.graph, self.memory
        outputs, here = self.recomputation.ancestry.outputs[k], self.view.cells.here
        takes = [each for each in outputs if not here[each]]
        present = [each for each in outputs if here[each]]
        for each in present:
            memory.lock(each)
        if takes:
            memory.take(takes, k, again=True)
        makes = [each for each in takes if each == b or self._is_restored(each, k)]
        memory.compute.relaunch(k, tuple(dict.fromkeys((b, *makes))))
        memory.advance(graph.durations[k])
        for each in takes:
            if each in makes:
                memory.arrive((each,))
            else:
                memory.scratch(each)
        memory.unlock(present)
        if rerun.is_first and not rerun.is_last:
            memory.lock(b)
        if rerun.is_last and not rerun.is_first:
            memory.unlock([b])

    def _is_restored(self, b: int, k: int) -> bool:
        """Whether one kernel alone makes a block as it was, and others use it: a workspace is only scratch memory."""
        return self._writers_so_far(b) == [k] and len(self.graph.uses[b]) > 1

    def _writers_so_far(self, b: int) -> list[int]:
        return [k for k in self.recomputation.writers[b] if k < self.view.kernel]

    # --- decisions --------------------------------------------------------------------------------------------

    def _ask_for(self, need: int) -> None:
        self._apply(self.decider.short(self.view, need))

    def _apply(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            self._history.append((decision, self.view.kernel))
            if fault := self._fault(decision):
                *before, illegal = (self._text(*each) for each in self._history[-1 - _LISTED :])
                raise ProgramError(f"{illegal}: {fault}; decisions before it: {'; '.join(before) or 'none'}")
            match decision:
                case Drop(b):
                    self.memory.give_up([b])
                case Evict(b, to):
                    self.memory.evict(b, to)
                case Fetch(b):
                    self.memory.fetch(b)
                case Wait(b):
                    self.memory.wait_until_left(b)
                    self.memory.order(b)  # a copy that has ended already

    def _fault(self, decision: Decision) -> str:
        """Why a decision is illegal; empty if it is legal."""
        view, memory, b = self.view, self.memory, decision.block
        if not 0 <= b < len(view.sizes):
            return "there is no such block"
        if isinstance(decision, Wait):
            return ""
        if isinstance(decision, Fetch):
            if view.cells.here[b] or b in memory.arriving:
                return "it is in device memory already"
            if memory.source(b) is None:
                return "its value is in no other memory"
            return "" if view.sizes[b] <= view.free else "there is no memory for it"
        if not view.cells.here[b]:
            return "its value is not in device memory"
        if view.cells.busy[b]:
            return "a kernel or a copy uses it now"
        if isinstance(decision, Drop):
            return "" if view.can_drop[b] else "it cannot be recomputed"
        if decision.to not in view.places:
            return f"no link goes to memory {decision.to!r}, nor through the host"
        return "" if view.has_room(decision.to, b) else f"{decision.to} memory has no room for it"

    def _text(self, decision: Decision, k: int) -> str:
        blocks, kernels = self.graph.blocks, self.graph.kernels
        name = blocks[decision.block].id if 0 <= decision.block < len(blocks) else f"block {decision.block}"
        what = type(decision).__name__.lower()
        to = f" to {decision.to}" if isinstance(decision, Evict) else ""
        return f"{what} {name}{to} before {f'kernel {kernels[k].id}' if k < len(kernels) else 'the end'}"
