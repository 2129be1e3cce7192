"""vDNN's dynamic mode: the published trials in order, compared with an independent computation for many budgets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simgpu.errors import OutOfMemoryError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import WithAlgorithms
from simgpu.policies.vdnn import Vdnn, offloading
from simgpu.program.instructions import Program
from simgpu.simulation.run import Result, simulate
from simgpu.trace.model import AlgorithmChoice, Phase, Trace
from tests.policies.contract import Fixed, context_of, node_of
from tests.policies.networks import straight, with_choices

Chosen = dict[str, AlgorithmChoice]
TRACE = with_choices()
BUDGETS = range(0, 1600, 10)


def choices_of(trace: Trace, kernel: str) -> list[AlgorithmChoice]:
    """A kernel's algorithms, fastest first."""
    return sorted((c for c in trace.algorithms if c.kernel == kernel), key=lambda c: c.duration_ns)


def pick(trace: Trace, index: int) -> Chosen:
    """The fastest (0) or slowest (-1) algorithm of every kernel with a choice."""
    return {c.kernel: choices_of(trace, c.kernel)[index] for c in trace.algorithms}


def algorithms_of(program: Program) -> dict[str, str]:
    """The algorithms that a program requests, by kernel."""
    chosen = [pair for change in program.transforms if isinstance(change, WithAlgorithms) for pair in change.chosen]
    return {TRACE.kernels[k].id: name for k, name in chosen}


class Chain:
    """A chain's device memory at each kernel under layer-synchronous offloading, by arithmetic.

    For each kernel its live blocks, its outputs and its workspace must fit; once it has ended and its workspace is
    released, the blocks fetched during it must fit. Nothing here runs the simulator or reads its programs.
    """

    def __init__(self, trace: Trace, mode: str, budget: int) -> None:
        self.budget = budget
        self.sizes = {block.id: block.bytes for block in trace.blocks}
        self.layers = [kernel for kernel in trace.kernels if kernel.phase is Phase.FORWARD]
        count = len(self.layers)
        self.inputs = ["x", *(f"y{n}" for n in range(1, count))]
        conv = [layer.op == "conv2d" for layer in self.layers]
        self.sent = {n for n in range(count - 1) if mode == "all" or (mode == "conv" and conv[n])}
        self.prefetched_during: dict[int, int] = {}
        for current in reversed(range(count)):
            for n in reversed(range(current)):
                if n in self.sent and n not in self.prefetched_during.values():
                    self.prefetched_during[current] = n
                    break
                if conv[n]:
                    break

    def walk(self, chosen: Chosen, downgrade: dict[str, list[AlgorithmChoice]] | None = None) -> Chosen | None:
        """The algorithms with which the chain fits, None if it does not; with `downgrade`, each kernel that overflows
        switches to its fastest algorithm with less workspace until it fits.
        """
        chosen = dict(chosen)
        count = len(self.layers)
        size = [self.sizes[name] for name in self.inputs]
        here = {0}
        for n in range(count):
            built = size[n + 1] if n + 1 < count else 0
            if not self._settle(self.layers[n].id, sum(size[m] for m in here) + built, chosen, downgrade):
                return None
            here = (here | {n + 1} if n + 1 < count else here) - ({n} & self.sent)
        for n in reversed(range(count)):
            if not self._settle(f"B:L{n + 1}", sum(size[m] for m in here), chosen, downgrade):
                return None
            here -= {n} - {0}
            if n in self.prefetched_during:
                here.add(self.prefetched_during[n])
                if sum(size[m] for m in here) > self.budget:
                    return None
        return chosen

    def _settle(
        self, kernel: str, needs: int, chosen: Chosen, downgrade: dict[str, list[AlgorithmChoice]] | None
    ) -> bool:
        def workspace() -> int:
            return chosen[kernel].workspace_bytes if kernel in chosen else 0

        while needs + workspace() > self.budget:
            smaller = [c for c in (downgrade or {}).get(kernel, []) if c.workspace_bytes < workspace()]
            if not smaller:
                return False
            chosen[kernel] = min(smaller, key=lambda c: c.duration_ns)
        return True


def expected(trace: Trace, budget: int) -> tuple[str, Chosen]:
    """The outcome of the published order of trials, by arithmetic."""
    fastest, smallest = pick(trace, 0), pick(trace, -1)
    if Chain(trace, "all", budget).walk(smallest) is None:
        return "nothing fits", smallest
    for mode in ("none", "conv", "all"):
        if Chain(trace, mode, budget).walk(fastest) is not None:
            return f"offload {mode}, fastest algorithms", fastest
    table = {c.kernel: choices_of(trace, c.kernel) for c in trace.algorithms}
    for mode in ("conv", "all"):
        result = Chain(trace, mode, budget).walk(fastest, table)
        if result is not None:
            return f"offload {mode}, algorithms downgraded one by one", result
    return "offload all, smallest algorithms", smallest


def adopted(result: Result) -> str:
    """The adopted configuration: the last note."""
    return result.program.notes[-1].removeprefix("trial: ").removeprefix("adopted: ").removesuffix(": fits")


def run(trace: Trace, budget: int) -> Result | None:
    try:
        return simulate(trace, node_of(budget), "vdnn", parameters={"mode": "dynamic"})
    except OutOfMemoryError:
        return None


@pytest.mark.slow
def test_dynamic_mode_adopts_the_result_of_the_published_trials():
    for budget in BUDGETS:
        check_against_published_trials(budget)


def check_against_published_trials(budget: int) -> None:
    outcome, chosen = expected(TRACE, budget)
    result = run(TRACE, budget)
    if outcome == "nothing fits":
        assert result is None
        return
    assert result is not None and adopted(result) == outcome
    assert algorithms_of(result.program) == {kernel: choice.algorithm for kernel, choice in chosen.items()}
    mode = outcome.removeprefix("offload ").partition(",")[0]
    graph = TaskGraph.of(TRACE)
    algorithms = {graph.kernel(kernel): choice.algorithm for kernel, choice in chosen.items()}
    assert result.program == offloading(graph, mode, algorithms)
    moved = {span.name for span in result.timeline if span.label == "copy_d2h"}
    assert moved == {"none": set(), "conv": {"x", "y1", "y3"}, "all": {"x", "y1", "y2", "y3"}}[mode]
    assert int(result.timeline.memory("device").used.max()) <= budget


def test_published_outcomes_occur_in_order_as_memory_shrinks():
    """The last resort never occurs: downgrading one by one can reach the smallest algorithms everywhere."""
    outcomes = list(dict.fromkeys(expected(TRACE, budget)[0] for budget in reversed(BUDGETS)))
    assert outcomes == [
        "offload none, fastest algorithms",
        "offload conv, fastest algorithms",
        "offload all, fastest algorithms",
        "offload conv, algorithms downgraded one by one",
        "offload all, algorithms downgraded one by one",
        "nothing fits",
    ]


def test_the_notes_list_the_trials_in_the_published_order():
    budget = next(b for b in BUDGETS if expected(TRACE, b)[0] == "offload all, algorithms downgraded one by one")
    result = run(TRACE, budget)
    assert result is not None
    assert result.program.notes == (
        "trial: offload all, smallest algorithms: fits",
        "trial: offload none, fastest algorithms: does not fit",
        "trial: offload conv, fastest algorithms: does not fit",
        "trial: offload all, fastest algorithms: does not fit",
        "trial: offload conv, algorithms downgraded one by one: does not fit",
        "trial: offload all, algorithms downgraded one by one: fits",
    )


@pytest.mark.slow
def test_only_kernels_that_overflow_are_downgraded():
    """Between the extremes some kernels use the fastest, some the middle, some the smallest algorithm."""
    mixes = set()
    for budget in BUDGETS:
        result = run(TRACE, budget)
        if result is not None and "downgraded" in adopted(result):
            mixes.add(frozenset(algorithms_of(result.program).values()))
    assert frozenset({"fft", "tiled"}) in mixes
    assert any("implicit" in mix for mix in mixes)


def test_without_algorithm_choices_only_offloading_modes_are_tried():
    trace = straight(["conv2d", "max_pool2d", "conv2d", "linear"], [100, 300, 200, 100])
    outcomes = []
    for budget in range(1000, 0, -20):
        result = run(trace, budget)
        outcomes.append(adopted(result) if result else "nothing fits")
    assert list(dict.fromkeys(outcomes)) == [
        "offload none, fastest algorithms",
        "offload conv, fastest algorithms",
        "offload all, fastest algorithms",
        "nothing fits",
    ]


def test_an_overflow_at_a_kernel_without_choices_falls_back_to_smallest_algorithms():
    """If memory runs out at a kernel without a choice, nothing can be downgraded. The trials are stubs."""
    graph = TaskGraph.of(TRACE)

    def trial(program):
        if algorithms_of(program) != {kernel: choice.algorithm for kernel, choice in pick(TRACE, -1).items()}:
            raise OutOfMemoryError("pooling", "device", 1, 0, 0, 1, 0, (), "F:L3")
        return simulate(TRACE, node_of(10**6), Fixed(program))

    smallest = {graph.kernel(name): choice.algorithm for name, choice in pick(TRACE, -1).items()}
    program = Vdnn(mode="dynamic").plan(replace(context_of(TRACE, 10**6), trial=trial))
    assert program == offloading(graph, "all", smallest)
    assert program.notes[-3:] == (
        "trial: offload conv, algorithms downgraded one by one: does not fit",
        "trial: offload all, algorithms downgraded one by one: does not fit",
        "adopted: offload all, smallest algorithms",
    )


def test_trials_end_if_the_smallest_configuration_does_not_fit():
    tried = []

    def trial(program):
        tried.append(program)
        raise OutOfMemoryError("all", "device", 1, 0, 0, 1, 0, (), "F:L1")

    program = Vdnn(mode="dynamic").plan(replace(context_of(TRACE, 10**6), trial=trial))
    assert tried == [program]
    assert program.notes == ("trial: offload all, smallest algorithms: does not fit",)


@pytest.mark.parametrize("which, index", [("fastest", 0), ("smallest", -1)])
@pytest.mark.parametrize("mode", ["all", "conv"])
def test_modes_all_and_conv_use_the_requested_algorithms(mode, which, index):
    result = simulate(TRACE, node_of(10**6), "vdnn", parameters={"mode": mode, "algorithms": which})
    assert algorithms_of(result.program) == {kernel: choice.algorithm for kernel, choice in pick(TRACE, index).items()}
    message = {kernel.id: kernel.duration_ns for kernel in TRACE.kernels}
    message |= {kernel: choice.duration_ns for kernel, choice in pick(TRACE, index).items()}
    assert message == {span.name: span.end_ns - span.start_ns for span in result.timeline if span.label == "compute"}


def test_recorded_algorithms_are_kept_by_default():
    assert algorithms_of(simulate(TRACE, node_of(10**6), "vdnn").program) == {}
