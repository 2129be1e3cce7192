"""The contract of every memory policy, as one test class that the tests of a policy inherit.

A package that registers a policy through the entry point group ``simgpu.policies`` tests it with a checkout of
simgpu on the path and three lines::

    from tests.policies.contract import PolicyContract

    class TestMine(PolicyContract):
        policy = "mine"                                   # its registered name
        parameter_sets = ({}, {"aggressive": True})       # every test runs with each set

Every set runs on hand-made networks and on the shipped recordings, with both pools, with ample and with short
memory. By default the first set runs each test on two of the networks, and all tests together on each of them; the
others are slow. A policy may refuse unsupported traces with `InputError`, but must support at least one.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
import pytest

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.graph.transforms import transformed
from simgpu.hardware.dma_engine import CdmaSpec
from simgpu.hardware.spec import GpuSpec, HostSpec, LinkSpec, NodeSpec, PeerSpec
from simgpu.policies.base import PlanContext, Policy
from simgpu.policies.registry import describe, make_policy, policy_class
from simgpu.program.instructions import HOST, Initialize, Launch, Program
from simgpu.program.text import from_json, to_json
from simgpu.program.verify import verify
from simgpu.simulation.run import Result, simulate, task_graph
from simgpu.timeline.model import SpanKind
from simgpu.trace.folder import load_trace
from simgpu.trace.model import BlockKind, SparsitySample, Trace
from simgpu.trace.stats import trace_stats
from tests.policies.networks import NETWORKS
from tests.sets import slow_except

SHIPPED = ("resnet20-cifar-cpu", "vgg11-cifar-cpu")
TRACES = (*NETWORKS, *SHIPPED)
POOLS = ("counting", "addressed")
ITERATIONS = 4
#: 7 bytes per nanosecond out, 3 in: hand-made copies take about as long as hand-made kernels, odd times included.
LINK = LinkSpec("test link", 7 * 10**9, 3 * 10**9, latency_ns=1)
PLENTY = 10**12

Parameters = Mapping[str, object]


@cache
def trace_of(name: str) -> Trace:
    """A trace; the hand-made ones are of 4 samples and have feature maps of mostly zeros."""
    if name not in NETWORKS:
        return load_trace(name)
    trace = NETWORKS[name]()
    maps = [block.id for block in trace.blocks if block.kind is BlockKind.ACTIVATION]
    sparsity = tuple(SparsitySample(name, 0, 0.8) for name in maps)
    return replace(trace, info=replace(trace.info, batch=4), sparsity=sparsity)


def node_of(memory: int, *, compressing: bool = False, gpus: int = 1) -> NodeSpec:
    """A small V100 whose copies take about as long as hand-made kernels, with a compressing DMA engine or without."""
    peers = PeerSpec("test link", "nvlink", 10**9) if gpus > 1 else None
    cdma = CdmaSpec("zvc", 9 * 10**9, buffer=100, latency_ns=10, kernel_bandwidth=10**9) if compressing else None
    gpu = GpuSpec("Tesla V100 PCIe", memory, dram_bandwidth=900 * 10**9, multiprocessors=80, cdma=cdma)
    host = HostSpec(codec_bandwidth=5 * 10**9, memory_bandwidth=20 * 10**9)
    return NodeSpec("bench", gpu, LINK, host, gpus=gpus, peers=peers)


@dataclass(frozen=True)
class Fixed(Policy):
    """A policy that returns a given program; used for trial runs."""

    name = "fixed"
    summary = source = "for trial runs"

    program: Program

    def plan(self, context: PlanContext) -> Program:
        return self.program


def context_of(trace: Trace, budget: int, seed: int = 0, *, compressing: bool = False, gpus: int = 1) -> PlanContext:
    """The planning context of a policy; its trial runs use the simulator."""
    node = node_of(budget, compressing=compressing, gpus=gpus)

    def trial(program: Program) -> Result:
        return simulate(trace, node, Fixed(program), seed=seed)

    return PlanContext(task_graph(trace, node), node, budget, trial, np.random.default_rng(seed))


def budgets_of(trace: Trace) -> dict[str, int]:
    """Ample memory, the peak of the needed lifetimes, and two budgets between that and the persistent blocks."""
    stats = trace_stats(trace)
    assert stats.peak_needed is not None
    most, smallest = stats.peak_needed.bytes, sum(block.bytes for block in trace.blocks if block.persistent)
    return {"plenty": PLENTY, "exact": most, "short": (2 * most + smallest) // 3, "tiny": (most + 5 * smallest) // 6}


@cache
def _outcome(
    policy: str, given: tuple[tuple[str, object], ...], name: str, budget: int, pool: str, compressing: bool, gpus: int
) -> Any:
    trace, node = trace_of(name), node_of(budget, compressing=compressing, gpus=gpus)
    try:
        return simulate(trace, node, policy, parameters=dict(given), iterations=ITERATIONS, seed=7, pool=pool)
    except (OutOfMemoryError, InputError) as error:
        return error


def default_networks(turn: int) -> list[str]:
    """The hand-made chain, which nearly every policy supports, and one of the other networks, another at each turn.

    >>> default_networks(0), default_networks(1)
    (['chain', 'in place'], ['chain', 'residual'])
    """
    first, *others = NETWORKS
    return [first, others[turn % len(others)]]


def _pair(label: str, given: Parameters, trace: Any, first: bool) -> Any:
    """A set of parameters with a trace; all but the first set are slow, and exhaustive on long recordings."""
    name, marks = (trace, ()) if isinstance(trace, str) else (trace.values[0], trace.marks)
    if not first:
        marks = (pytest.mark.exhaustive if name in SHIPPED else pytest.mark.slow,)
    return pytest.param(given, name, marks=marks, id=f"{label}-{name}")


class PolicyContract:
    """Inherit, and name the policy and the parameter sets to test it with.

    compressing: whether it needs a node with a compressing DMA engine; gpus: of the node. pools: the pools that its
    programs support. copies_ahead: whether it may copy out blocks that then stay resident.
    """

    policy: ClassVar[str]
    pools: ClassVar[tuple[str, ...]] = POOLS
    parameter_sets: ClassVar[tuple[Parameters, ...]] = ({},)
    compressing: ClassVar[bool] = False
    gpus: ClassVar[int] = 1
    copies_ahead: ClassVar[bool] = False

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        names = metafunc.fixturenames
        sets = {", ".join(f"{k}={v}" for k, v in given.items()) or "defaults": given for given in self.parameter_sets}
        first = next(iter(sets))
        traces = slow_except(TRACES, *self.networks(metafunc.function.__name__)) if "trace_name" in names else []
        if "parameters" in names and traces:
            pairs = [_pair(label, sets[label], trace, label == first) for label in sets for trace in traces]
            if "not slow" in metafunc.config.getoption("markexpr"):  # 8,000 tests are not collected to be left out
                pairs = [pair for pair in pairs if not pair.marks]
            metafunc.parametrize(("parameters", "trace_name"), pairs)
        elif "parameters" in names:
            metafunc.parametrize("parameters", list(sets.values()), ids=list(sets))
        elif traces:
            metafunc.parametrize("trace_name", traces)
        if "pool" in names:
            metafunc.parametrize("pool", self.pools)

    def networks(self, test: str) -> list[str]:
        """The hand-made networks that a test runs by default: each of all networks is run by several of the tests."""
        functions = inspect.getmembers(type(self), inspect.isfunction)
        uses = [name for name, each in functions if "trace_name" in each.__code__.co_varnames]
        return default_networks(uses.index(test) + crc32(self.policy.encode()))

    def run(self, parameters: Parameters, trace_name: str, budget: int = PLENTY, pool: str = "") -> Result:
        """A run that must succeed; the test is skipped if the policy refuses the trace."""
        outcome = self.outcome(parameters, trace_name, budget, pool)
        if isinstance(outcome, InputError):
            pytest.skip(f"{self.policy} does not take this trace: {outcome}")
        if isinstance(outcome, OutOfMemoryError):
            raise outcome
        return outcome

    def outcome(
        self, parameters: Parameters, trace_name: str, budget: int, pool: str = ""
    ) -> Result | OutOfMemoryError | InputError:
        given = tuple(sorted(parameters.items()))
        return _outcome(self.policy, given, trace_name, budget, pool or self.pools[0], self.compressing, self.gpus)

    def context(self, trace: Trace, seed: int = 0) -> PlanContext:
        return context_of(trace, PLENTY, seed, compressing=self.compressing, gpus=self.gpus)

    def plan(self, parameters: Parameters, context: PlanContext) -> Program:
        try:
            return make_policy(self.policy, parameters).plan(context)
        except InputError as error:
            pytest.skip(f"{self.policy} does not take this trace: {error}")

    # --- name, description and parameters --------------------------------------------------------------------------

    def test_has_a_description_and_a_source(self):
        info, result = describe(self.policy), policy_class(self.policy)
        assert info.name == result.name == self.policy
        for text in (info.summary, info.source):
            assert text == text.strip() != "" and "\n" not in text
        own = vars(result).get("__dataclass_params__")
        assert own is not None and own.frozen, "a policy is a frozen dataclass"
        assert "plan" in vars(result) or not inspect.isabstract(result)
        documented = inspect.getdoc(result) or ""
        assert documented and not documented.startswith(f"{result.__name__}("), "the class has a docstring of its own"
        module = inspect.getdoc(sys.modules[result.__module__]) or ""
        assert f"`{self.policy}`" in module, "the docstring of its module names the policy"

    def test_every_parameter_is_described_and_its_default_valid(self):
        info = describe(self.policy)
        for parameter in info.parameters:
            assert parameter.description.strip(), f"{parameter.name} is not described"
            assert parameter.default is not None, f"{parameter.name} has no default"
            if parameter.choices:
                assert parameter.default in parameter.choices
        defaults = {parameter.name: parameter.default for parameter in info.parameters}
        assert make_policy(self.policy, defaults) == make_policy(self.policy)

    def test_every_choice_of_a_parameter_is_accepted(self):
        for parameter in describe(self.policy).parameters:
            for choice in parameter.choices:
                assert getattr(make_policy(self.policy, {parameter.name: choice}), parameter.name) == choice

    def test_wrong_parameters_are_reported_together(self):
        names = [parameter.name for parameter in describe(self.policy).parameters]
        wrong: dict[str, object] = dict.fromkeys(names, object())
        with pytest.raises(InputError) as caught:
            make_policy(self.policy, {**wrong, "no_such_parameter": 1})
        assert [p.place for p in caught.value.problems] == [f"parameters.{n}" for n in (*names, "no_such_parameter")]
        assert all(problem.what and problem.remedy for problem in caught.value.problems)

    def test_values_outside_the_choices_are_refused(self):
        for parameter in describe(self.policy).parameters:
            if parameter.choices:
                with pytest.raises(InputError, match=f"parameters.{parameter.name}: 'no such choice'"):
                    make_policy(self.policy, {parameter.name: "no such choice"})

    # --- its plan -------------------------------------------------------------------------------------------

    def test_plans_a_program_that_verify_accepts(self, parameters, trace_name):
        context = self.context(trace_of(trace_name))
        program = self.plan(parameters, context)
        assert isinstance(program, Program)
        verify(program, context.graph, capacity=PLENTY)
        assert from_json(to_json(program)) == program

    def test_plans_the_same_program_again(self, parameters, trace_name):
        trace = trace_of(trace_name)
        first, second = (self.plan(parameters, self.context(trace, seed=3)) for _ in range(2))
        assert first == second and first.notes == second.notes

    def test_the_number_of_the_single_compute_stream_does_not_matter(self, parameters, trace_name):
        trace = trace_of(trace_name)
        other = replace(trace, kernels=tuple(replace(kernel, stream=3) for kernel in trace.kernels))
        assert self.plan(parameters, self.context(other)) == self.plan(parameters, self.context(trace))

    def test_planning_does_not_change_the_graph(self, parameters, trace_name):
        context = self.context(trace_of(trace_name))
        graphs = [graph for graph in (context.graph, context.graph.plain) if graph is not None]
        # Costs and compressed memory are values that cannot be changed, nor copied.
        names = [f.name for f in fields(context.graph) if f.name not in ("costs", "compressed", "compression", "plain")]
        before = [{name: copy.deepcopy(getattr(graph, name)) for name in names} for graph in graphs]
        self.plan(parameters, context)
        assert [{name: getattr(graph, name) for name in names} for graph in graphs] == before

    # --- its runs -------------------------------------------------------------------------------------------

    def test_supports_at_least_one_trace(self, parameters):
        assert any(isinstance(self.outcome(parameters, name, PLENTY), Result) for name in TRACES)

    def test_with_ample_memory_it_fits_and_is_steady(self, parameters, trace_name, pool):
        result = self.run(parameters, trace_name, pool=pool)
        assert result.pool == pool
        assert result.iterations == len(result.timeline.iteration_ends_ns) == ITERATIONS
        assert len({end - start for start, end in map(result.timeline.window, (-2, -1))}) == 1
        # A fetched persistent block may have another address at each iteration's end: equal in time, not in address.
        assert result.steady or pool == "addressed"

    def adds(self, kernel: str) -> bool:
        """Whether a kernel is one that the policy adds to those of the trace."""
        return False

    def settles(self, parameters) -> bool:
        """Whether iterations become equal; not where what is evicted moves on from one to the next."""
        return True

    def test_keeps_to_the_budget_or_names_the_kernel_that_cannot_run(self, parameters, trace_name, pool):
        kernels = {kernel.id for kernel in trace_of(trace_name).kernels}
        for budget in budgets_of(trace_of(trace_name)).values():
            outcome = self.outcome(parameters, trace_name, budget, pool)
            if isinstance(outcome, OutOfMemoryError):
                # Without a kernel, the message lists what is resident from the start.
                assert outcome.kernel.split("@")[0] in {*kernels, ""} or self.adds(outcome.kernel), str(outcome)
                assert outcome.requested > 0 and outcome.capacity == budget
            elif isinstance(outcome, Result) and not outcome.program.unlimited_memory:
                memory = outcome.timeline.memory("device")
                assert memory.capacity == budget
                assert memory.live.max() <= memory.used.max() <= outcome.high_water <= budget
                assert outcome.steady or pool == "addressed" or not self.settles(parameters)

    def test_is_never_faster_than_compute_or_than_its_traffic(self, parameters, trace_name):
        graph = self.context(trace_of(trace_name)).graph
        for budget in budgets_of(trace_of(trace_name)).values():
            result = self.outcome(parameters, trace_name, budget)
            if isinstance(result, Result):
                assert result.iteration_ns >= transformed(graph, result.program.transforms).ideal_ns()
                metrics = result.metrics
                assert result.iteration_ns * LINK.d2h_bandwidth >= metrics.copied_bytes["d2h"] * 10**9
                assert result.iteration_ns * LINK.h2d_bandwidth >= metrics.copied_bytes["h2d"] * 10**9

    def test_runs_every_kernel_as_often_as_its_round_repeats(self, parameters, trace_name):
        result = self.run(parameters, trace_name)
        graph = transformed(self.context(trace_of(trace_name)).graph, result.program.transforms)
        declared = Counter(
            graph.kernels[instruction.kernel].id
            for segment in result.program.segments
            for code in segment.streams.values()
            for instruction in code * segment.repeat
            if isinstance(instruction, Launch) and instruction.recompute
        )
        ran: Counter[tuple[int, str]] = Counter()
        recomputed: Counter[tuple[int, str]] = Counter()
        for span in result.timeline:
            if span.kind is SpanKind.COMPUTE:
                ran[span.iteration, span.name] += 1
            elif span.kind is SpanKind.RECOMPUTE:
                recomputed[span.iteration, span.name] += 1
        times = {graph.kernels[k].id: part.repeat for part in graph.rounds for k in range(part.first, part.stop)}
        assert ran == {(i, kernel): n for i in range(ITERATIONS) for kernel, n in times.items()}
        assert recomputed == {(i, kernel): n for i in range(ITERATIONS) for kernel, n in declared.items()}
        assert {name.split("@")[0] for name in times} == {kernel.id for kernel in trace_of(trace_name).kernels}

    def test_every_offloaded_block_is_fetched_again(self, parameters, trace_name):
        """Fetched blocks were offloaded or are initially on the host; a host copy need not be offloaded again."""
        result = self.run(parameters, trace_name)
        graph = transformed(self.context(trace_of(trace_name)).graph, result.program.transforms)
        moved = {"copy_d2h": Counter[str](), "copy_h2d": Counter[str]()}
        start, end = result.timeline.window(-1)
        for span in result.timeline:
            if span.label in moved and start <= span.start_ns < end:
                moved[span.label][span.name] += 1
        instructions = [i for part in result.program.segments for code in part.streams.values() for i in code]
        initialized = [i.blocks for i in instructions if isinstance(i, Initialize) and i.memory == HOST]
        given = {graph.blocks[b].id for blocks in initialized for b in blocks}
        at_start = {graph.blocks[b].id for each in result.program.other_contents for b in each.blocks}
        out, back = moved["copy_d2h"], moved["copy_h2d"]
        assert set(back) - given - at_start <= set(out)
        if not self.copies_ahead:
            assert set(out) <= set(back) - given
            assert out <= back

    def test_the_result_can_be_printed_and_exported(self, parameters):
        result = self.run(parameters, "chain")
        assert self.policy in repr(result)
        assert result.to_dict()["policy"] == self.policy
