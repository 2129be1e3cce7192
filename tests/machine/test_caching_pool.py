"""PyTorch's caching allocator as a GPU's memory: what a run reserves, when it does not fit, and that it is steady."""

from __future__ import annotations

import pytest

import simgpu
from simgpu.errors import InputError, OutOfMemoryError, ProgramError
from simgpu.experiments.compare import compare
from simgpu.experiments.scenarios.load import make_scenario
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.machine.compiled_engine import Engine
from simgpu.machine.run import run_program
from simgpu.memory.caching.pool import CachingPool
from simgpu.memory.caching.settings import parse
from simgpu.program.instructions import COMPUTE, Acquire, Await, Launch, Release, Signal
from simgpu.report.page import facts
from simgpu.report.recorded import recorded_from
from simgpu.simulation.result import Result
from simgpu.simulation.snapshot import memory_snapshot
from simgpu.timeline.streams import StreamId
from simgpu.trace.chain import chain
from simgpu.trace.model import Trace
from tests.semantics.hand_made import block, graph, kernel, program

MIB = 2**20


def node(memory: int = 2**30, context: int | None = None) -> NodeSpec:
    return NodeSpec("example", GpuSpec("gpu", memory, context_memory=context), LinkSpec("pcie", 10**10, 10**10))


def run(trace: Trace, policy: str = "none", memory: int = 2**30, allocator: str | None = None) -> Result:
    return simgpu.simulate(trace, node(memory), policy, pool="caching", allocator=allocator)


def layers(*sizes: int) -> Trace:
    """A chain of layers whose feature maps have these sizes in MiB."""
    return chain([10] * len(sizes), [10] * len(sizes), [size * MIB for size in sizes])


def test_blocks_are_rounded_and_placed_in_segments_and_released_all_or_nothing() -> None:
    pool = CachingPool(40 * MIB)
    fits = pool.prepare([0, 1, 2], [3 * MIB, 700, 0])
    assert pool.acquire(fits) and (pool.live, pool.used, pool.high_water) == (3 * MIB + 700, 3 * MIB + 1024, 22 * MIB)
    before = pool.state()
    assert not pool.acquire(pool.prepare([3, 4], [2 * MIB, 30 * MIB]))
    assert pool.state() == before and pool.address(3) is None
    pool.release(fits)
    assert (pool.live, pool.used, pool.address(0)) == (0, 0, None)
    with pytest.raises(ProgramError, match="block 0 is released but holds no memory"):
        pool.release(fits)
    with pytest.raises(ProgramError, match="needs the addressed pool"):
        pool.prepare([0], [1], [0])


def test_a_run_reports_live_allocated_and_reserved_peaks() -> None:
    result = run(layers(12, 12, 12))
    metrics = result.metrics
    assert metrics.device_peak_bytes <= metrics.device_peak_used_bytes <= result.high_water == metrics.reserved_bytes
    assert result.high_water % (2 * MIB) == 0
    assert "reserved" in repr(result) and result.to_dict()["metrics"]["device_reserved_bytes"] == result.high_water


def test_reserved_memory_is_a_curve_above_allocated_memory() -> None:
    result = run(layers(12, 12, 12), "vdnn", memory=40 * MIB)
    (curve,) = result.timeline.device_memories
    assert curve.reserved is not None and (curve.reserved >= curve.used).all() and (curve.used >= curve.live).all()
    assert int(curve.reserved.max()) == result.high_water and not (curve.reserved % (2 * MIB)).any()
    assert all(each.reserved is None for each in result.timeline.shared_memories)
    axes = result.plot("run").axes[-1]
    assert [text.get_text() for text in axes.get_legend().get_texts()][1] == "reserved, peak\n24 MiB"


def test_other_pools_have_no_reserved_curve() -> None:
    for pool in ("counting", "addressed"):
        timeline = simgpu.simulate(layers(12, 12), node(), "none", pool=pool).timeline
        assert not timeline.has_reserved and all(each.reserved is None for each in timeline.memories)


@pytest.mark.parametrize("engine", ["simpy", pytest.param("compiled", marks=pytest.mark.slow)])
def test_what_a_refused_request_frees_is_in_the_curve(engine: Engine) -> None:
    """At 10 ns, a request of 30 MiB frees the unused segment of 12 MiB, and waits until that of 14 MiB is too."""
    tasks = graph(
        [kernel("k1", writes="a b"), kernel("k2", reads="b", writes="c")],
        [block("a", 12 * MIB), block("b", 14 * MIB), block("c", 30 * MIB)],
    )
    code = program(
        {
            COMPUTE: [Acquire((0, 1)), Launch(0), Release((0,)), Signal(0), Launch(1), Release((1,))],
            StreamId(0, "d2h"): [Await(0), Acquire((2,)), Release((2,))],
        }
    )
    ran = run_program(code, tasks, node(), budget=40 * MIB, pool="caching", iterations=1, engine=engine)
    curve = ran.timeline.memories[0]
    assert curve.reserved is not None
    columns = curve.time_ns, curve.used // MIB, curve.reserved // MIB
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == [
        *[(0, 0, 0), (0, 26, 26), (10, 14, 26), (10, 14, 14)],
        *[(20, 0, 14), (20, 30, 30), (20, 0, 30)],
    ]


def test_the_time_of_a_run_that_fits_does_not_depend_on_its_allocator() -> None:
    trace = simgpu.load_trace("resnet20-cifar-cpu")
    laptop = simgpu.load_node("laptop-2gb")
    for policy in ("none", "vdnn", "superneurons"):
        runs = [simgpu.simulate(trace, laptop, policy, pool=pool) for pool in ("counting", "caching")]
        assert runs[0].iteration_ns == runs[1].iteration_ns
        assert runs[0].metrics.device_peak_bytes == runs[1].metrics.device_peak_bytes
        assert runs[1].steady


def test_a_run_fits_by_its_reserved_memory() -> None:
    """Three feature maps of 3 MiB take a segment of 20 MiB."""
    trace = layers(3, 3, 3)
    assert simgpu.simulate(trace, node(16 * MIB), "none").metrics.device_peak_bytes <= 16 * MIB
    with pytest.raises(OutOfMemoryError):
        run(trace, memory=16 * MIB)
    assert run(trace, memory=20 * MIB).high_water == 20 * MIB


def test_a_run_that_does_not_fit_says_what_the_allocator_has_reserved() -> None:
    """Of 38 MiB, one segment of 20 MiB leaves too little for a second one."""
    with pytest.raises(OutOfMemoryError, match=r"has reserved 20 MiB, .* a request of 1 to 10 MiB has 20 MiB"):
        run(layers(*[3] * 10), memory=38 * MIB)


@pytest.mark.parametrize("engine", ["simpy", pytest.param("compiled", marks=pytest.mark.slow)])
def test_the_allocator_has_what_the_cuda_context_leaves_of_the_node(engine: Engine) -> None:
    """Three feature maps of 3 MiB take a segment of 20 MiB, which fits exactly."""
    trace = layers(3, 3, 3)
    result = simgpu.simulate(trace, node(52 * MIB, 32 * MIB), "none", pool="caching", engine=engine)
    assert (result.budget, result.context, result.high_water) == (20 * MIB, 32 * MIB, 20 * MIB)
    assert result.timeline.device_memories[0].capacity == 20 * MIB
    with pytest.raises(OutOfMemoryError):
        simgpu.simulate(trace, node(52 * MIB, 32 * MIB + 1), "none", pool="caching", engine=engine)


def test_a_given_budget_is_the_allocators_own() -> None:
    result = simgpu.simulate(layers(3, 3, 3), node(52 * MIB, 40 * MIB), "none", pool="caching", budget=20 * MIB)
    assert (result.budget, result.context, result.high_water) == (20 * MIB, 0, 20 * MIB)
    assert result.metrics.context_bytes == 0
    assert "context memory not subtracted: the given budget is the allocator's" in repr(result)


@pytest.mark.parametrize("pool", ["counting", "addressed"])
def test_other_pools_do_not_count_the_cuda_context(pool: str) -> None:
    result = simgpu.simulate(layers(3, 3, 3), node(52 * MIB, 40 * MIB), "none", pool=pool)
    plain = simgpu.simulate(layers(3, 3, 3), node(52 * MIB), "none", pool=pool)
    assert (result.budget, result.context) == (52 * MIB, 0)
    assert result.to_dict() == plain.to_dict() and "context" not in str(result.to_dict())


@pytest.mark.parametrize(
    ("context", "text"),
    [(32 * MIB, "CUDA context 32 MiB, in addition to the budget"), (None, "context memory not known, counted as 0")],
)
def test_a_run_reports_the_memory_of_the_cuda_context(context: int | None, text: str) -> None:
    compared = compare(layers(3, 3, 3), node(52 * MIB, context), ["none"], pool="caching")
    result = compared.results["none"]
    assert text in repr(result) and result.to_dict()["metrics"]["device_context_bytes"] == context
    assert result.to_dict()["node"]["gpu"]["context_memory"] == context
    assert text in dict(facts(recorded_from(compared)))["run"]


def test_a_memory_fraction_is_one_of_the_device_with_its_context() -> None:
    """As in PyTorch, half of 100 MiB is allowed, although the context takes 40 MiB: two segments of 20 MiB fit."""
    half = "per_process_memory_fraction:0.5"
    pool = CachingPool(60 * MIB, settings=parse(half), context=40 * MIB)
    assert pool.acquire(pool.prepare([0, 1], [20 * MIB, 20 * MIB]))
    assert not CachingPool(60 * MIB, settings=parse(half)).acquire(pool.prepare([0, 1], [20 * MIB, 20 * MIB]))
    result = simgpu.simulate(layers(12, 12), node(100 * MIB, 40 * MIB), "none", pool="caching", allocator=half)
    assert result.high_water <= 50 * MIB and memory_snapshot(result)["segments"]


def test_the_context_must_leave_memory() -> None:
    with pytest.raises(InputError, match=r"context_memory takes all memory that is not reserved"):
        simgpu.load_node("laptop-2gb", {"gpu.context_memory": "2 GiB"})
    assert simgpu.load_node("laptop-2gb", {"gpu.context_memory": "300 MiB"}).gpu.context_memory == 300 * MIB


def test_settings_of_the_allocator_change_what_is_reserved() -> None:
    trace = layers(11, 14, 18, 22, 11, 14)
    plain, growing = (run(trace, allocator=options).high_water for options in (None, "expandable_segments:True"))
    assert plain != growing
    assert run(trace, allocator="expandable_segments:True").allocator == "expandable_segments:True"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"allocator": "expandable_segments:True"},
            "argument allocator: settings of the caching allocator apply to no other",
        ),
        ({"pool": "caching", "allocator": "expandable_segments:yes"}, "'yes' is neither True nor False"),
        ({"pool": "caching", "allocator": "max_split_size_mb:5"}, "too small: at least 20"),
    ],
)
def test_wrong_settings_are_refused(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        simgpu.simulate(layers(1), node(), "none", **arguments)  # type: ignore[arg-type]


def test_a_policy_that_plans_addresses_is_refused() -> None:
    with pytest.raises(InputError, match="policy modnn plans addresses, and the caching pool takes none"):
        run(layers(3, 3), "modnn")


@pytest.mark.slow
def test_the_compiled_engine_has_the_default_settings_and_says_so() -> None:
    def notes(allocator: str | None) -> list[str]:
        result = simgpu.simulate(layers(1), node(), "none", pool="caching", engine="compiled", allocator=allocator)
        return [note for note in result.notes if "PyTorch's caching allocator" in note]

    assert notes(None) == notes("roundup_power2_divisions:8") == []
    assert len(notes("expandable_segments:True")) == 1


def test_a_scenario_gives_settings_as_text_or_as_a_block() -> None:
    values = {"trace": "resnet20-cifar-cpu", "node": "laptop-2gb", "policies": "none", "pool": "caching"}
    block = make_scenario({**values, "allocator": {"expandable_segments": True, "max_split_size_mb": 64}}, "a block")
    text = make_scenario({**values, "allocator": "expandable_segments:True,max_split_size_mb:64"}, "a text")
    assert block.config == text.config
    assert block.config.allocator_settings == parse("expandable_segments:True,max_split_size_mb:64")
    with pytest.raises(InputError, match="give pool: caching too"):
        make_scenario({**values, "pool": "counting", "allocator": "expandable_segments:True"}, "another pool")
