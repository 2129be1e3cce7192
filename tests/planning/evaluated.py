"""Random placements for comparing the evaluator with the machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from hypothesis import assume
from hypothesis import strategies as st

from simgpu.errors import OutOfMemoryError
from simgpu.graph.encodings import Encoding
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import Duplex
from simgpu.machine.run import MachineRun, run_program
from simgpu.planning.columns import DRAINED
from simgpu.planning.evaluator import Costs, Evaluator
from simgpu.planning.options import Action, Decisions, Option
from simgpu.policies.common.placing import program_of
from simgpu.program.instructions import Program
from simgpu.program.verify import verify
from tests.semantics.random_traces import DrawnCosts, nodes
from tests.semantics.random_training import SIZES, TIMES, trainings


@dataclass(frozen=True)
class Case:
    """A placement vector with its evaluator, for comparison with a run."""

    evaluator: Evaluator
    vector: tuple[int, ...]

    @cached_property
    def costs(self) -> Costs:
        return self.evaluator.costs([self.vector])

    def within(self, budget: int) -> Case:
        return replace(self, evaluator=replace(self.evaluator, budget=budget))

    @cached_property
    def program(self) -> Program:
        """The program of the vector. Which fetches drain depends on times, which come from the evaluator."""
        of = self.evaluator
        drained = of.details(self.vector)[:, DRAINED].astype(bool).tolist() if of.drain else None
        return program_of(of.graph, of.decisions, self.vector, early=of.early, drained=drained)

    def run(self, iterations: int = 2) -> MachineRun | None:
        """Runs the program on the machine; None if it runs out of memory."""
        of = self.evaluator
        verify(self.program, of.graph)
        try:
            return run_program(self.program, of.graph, of.node, budget=of.budget, iterations=iterations)
        except OutOfMemoryError:
            return None


@st.composite
def cases(draw: st.DrawFn, *, slow: bool = False) -> Case:
    """Training on any node for which the closed form is exact, with any options and ample memory.

    slow: copies out take longer than kernels, and few feature maps stay.
    """
    graph = TaskGraph.of(draw(trainings()))
    costs = DrawnCosts({block.id: (draw(SIZES), draw(TIMES), draw(TIMES)) for block in graph.blocks})
    graph = replace(graph, costs=costs)
    node = draw(nodes(Duplex.FULL))
    node = replace(node, gpu=replace(node.gpu, copy_engines=2))
    if slow:
        node = replace(node, link=replace(node.link, d2h_bandwidth=draw(st.sampled_from([10**8, 5 * 10**8, 10**9]))))
    plain = Decisions.of(graph)
    decisions = plain.with_options(
        [
            Option(Action.SWAP, draw(st.integers(0, 4)), draw(st.sampled_from([None, Encoding(each.block, "drawn")])))
            for _ in range(draw(st.integers(0, 2)))
        ]
        for each in plain.maps
    )
    evaluator = Evaluator(
        graph, node, 10**12, decisions, early=draw(st.booleans()), drain=draw(st.booleans()), threads=1
    )
    stored = draw(st.sampled_from([0, 1] if slow else [0, 0, 1, 4]))
    vector = tuple(draw(st.sampled_from([*[0] * stored, *range(1, count)])) for count in decisions.choices)
    return Case(evaluator, vector)


@st.composite
def tight_cases(draw: st.DrawFn) -> Case:
    """The same with a budget from one byte below the smallest one that fits to the peak."""
    case = draw(cases(slow=True))
    smallest, peak = smallest_budget(case), int(case.costs.peak[0])
    assume(smallest < peak or draw(st.integers(0, 9)) == 0)
    budgets = [
        smallest,
        smallest,
        smallest,
        smallest + draw(st.integers(1, 100)),
        peak - 1,
        draw(st.integers(smallest, peak)),
    ]
    budget = max(smallest, min(draw(st.sampled_from(budgets)), peak))
    return case.within(max(budget - (draw(st.integers(0, 9)) == 0), 0))


def smallest_budget(case: Case) -> int:
    """The smallest budget that fits: the bytes missing at the worst moment with a budget of zero."""
    return int(case.within(0).costs.short[0])


def iteration_ns(run: MachineRun) -> int:
    """The step time of the last iteration (ns)."""
    start, end = run.timeline.window(-1)
    return end - start


def peak_of(run: MachineRun) -> int:
    return int(run.timeline.memory("device").used.max(initial=0))
