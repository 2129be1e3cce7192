"""The largest batch under each policy: its correctness, the number of simulations, and the output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

import simgpu
from simgpu.errors import InputError, OutOfMemoryError
from simgpu.experiments.largest_batch import MaxBatch
from simgpu.experiments.max_batch import max_batch
from simgpu.experiments.scenarios.load import load_scenario
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.policies.base import PlanContext, Policy
from simgpu.policies.vdnn import Vdnn
from simgpu.program.instructions import Program
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain
from simgpu.trace.model import Origin, Phase, Trace
from simgpu.workloads.modelled import build_trace
from simgpu.workloads.rescale import at_batch

LINK = LinkSpec("PCIe", 10**10, 10**10)
#: One sample: feature maps of 100, 200 and 300 bytes, all held until backward.
CHAIN = chain([5, 7, 9], [10, 14, 18], [100, 200, 300])
GPU = simgpu.load_node("2080ti")


def node(memory: int, **gpu: Any) -> NodeSpec:
    return NodeSpec("small", GpuSpec("gpu", memory, **gpu), LINK)


def fitting(trace: Trace, policy: str, batch: int, **settings: Any) -> bool:
    try:
        simulate(at_batch(trace, batch), GPU, policy, **settings)
    except OutOfMemoryError:
        return False
    return True


@dataclass(frozen=True)
class Resident(Policy):
    """Keeps everything resident and counts calls of `plan`; the result of `fits` is set by the test."""

    name, summary, source = "resident", "keep all blocks until their last use", "these tests"
    said: ClassVar[Callable[[PlanContext], bool | None]]
    planned: ClassVar[list[int]]

    def plan(self, context: PlanContext) -> Program:
        self.planned.append(context.graph.trace.info.batch)
        return lower(context.graph, Placement())

    def fits(self, context: PlanContext) -> bool | None:
        return type(self).said(context)


@pytest.fixture
def resident() -> Resident:
    Resident.planned = []
    return Resident()


@pytest.mark.parametrize(("memory", "plain", "vdnn"), [(600, 1, 1), (10_000, 16, 20), (59_999, 99, 119)])
def test_the_largest_batch_of_a_chain_follows_from_its_sizes(memory: int, plain: int, vdnn: int) -> None:
    """`none` needs all 600 bytes per sample; vDNN needs at most two neighbours of 500 if both are offloaded."""
    result = max_batch(CHAIN, node(memory), ["none", "vdnn"])
    assert (result["none"].batch, result["vdnn"].batch) == (plain, vdnn)
    assert result["none"].result is not None
    assert result["none"].result.metrics.device_peak_bytes == 600 * plain
    assert result.vs_none(result["vdnn"]) == vdnn / plain


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["none", "vdnn"])
@pytest.mark.parametrize("name", ["resnet20", "squeezenet"])
def test_the_largest_batch_fits_and_slightly_larger_ones_do_not(name: str, policy: str) -> None:
    trace = build_trace(name, batch=32, gpu=GPU.gpu, input="cifar10")
    (result,) = max_batch(trace, GPU, [policy], budget="2 GiB")
    assert result.batch is not None
    assert fitting(trace, policy, result.batch, budget="2 GiB")
    assert not any(fitting(trace, policy, result.batch + more, budget="2 GiB") for more in range(1, 5))
    assert result.result is not None
    assert result.result.trace.batch == result.batch
    assert result.result.metrics.device_peak_bytes <= 2 * 2**30


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 7, 5000])
def test_the_largest_batch_does_not_depend_on_the_batch_of_the_trace(batch: int) -> None:
    at = [build_trace("resnet20", batch=each, gpu=GPU.gpu) for each in (64, batch)]
    result = [max_batch(trace, GPU, ["none"], budget="1 GiB")["none"] for trace in at]
    assert result[0].batch == result[1].batch
    assert result[0].result is not None and result[1].result is not None
    assert result[0].result.iteration_ns == result[1].result.iteration_ns


def test_a_policy_that_predicts_what_fits_plans_only_at_the_largest_and_powers_of_two(
    resident: Resident,
) -> None:
    Resident.said = lambda context: 600 * context.graph.trace.info.batch <= context.budget
    (result,) = max_batch(CHAIN, node(10_000), [resident], speeds=False)
    assert (result.batch, result.speeds, result.recommended) == (16, (), None)
    assert resident.planned == [16]
    (result,) = max_batch(CHAIN, node(10_000), [resident])
    assert resident.planned == [16, 16, 1, 2, 4, 8]
    assert [speed.batch for speed in result.speeds] == [1, 2, 4, 8, 16]
    assert {batch: fits for batch, fits in result.tried if fits}.keys() <= set(range(1, 17))


@dataclass(frozen=True)
class Swaps(Policy):
    """Keeps everything up to a batch; for larger ones it needlessly offloads over a slow link."""

    name, summary, source = "swaps", "as none, and of large batches as vdnn", "these tests"
    retains: int = 8

    def plan(self, context: PlanContext) -> Program:
        stored = context.graph.trace.info.batch <= self.retains
        return lower(context.graph, Placement()) if stored else Vdnn().plan(context)


@pytest.mark.parametrize(
    ("retains", "batches"),
    [
        (8, [1, 2, 4, 8, 9, 10, 12, 16]),  # half way to the next that is slow, until there is none between
        (11, [1, 2, 4, 8, 10, 11, 12, 16]),
        (16, [1, 2, 4, 8, 16]),
    ],
)
def test_the_recommended_batch_is_the_largest_that_is_nearly_as_fast_as_any(retains: int, batches: list[int]) -> None:
    """63 ns of kernels per sample, and at least 200 ns of copies per sample of a swapped batch."""
    slow = NodeSpec("slow", GpuSpec("gpu", 10_000), LinkSpec("PCIe", 10**9, 10**9))
    (result,) = max_batch(CHAIN, slow, [Swaps(retains)], limit=16)
    assert [speed.batch for speed in result.speeds] == batches
    best = result.recommended
    assert best is not None
    assert (result.batch, best.batch) == (16, retains)
    assert (best.iteration_ns, best.slowdown) == (63 * retains, 1.0)
    assert best.samples_per_s == pytest.approx(10**9 / 63)
    assert all(speed.samples_per_s < 0.8 * best.samples_per_s for speed in result.speeds if speed.batch > retains)


def test_the_recommended_batch_does_not_depend_on_the_batch_of_the_trace() -> None:
    result = [max_batch(at_batch(CHAIN, batch), node(10_000), ["vdnn"]).results[0] for batch in (1, 3, 7)]
    assert len({each.speeds for each in result}) == 1


def test_a_policy_that_does_not_predict_what_fits_runs_at_each_batch_once(resident: Resident) -> None:
    Resident.said = lambda context: None
    (result,) = max_batch(CHAIN, node(10_000), [resident])
    assert result.batch == 16
    assert sorted(resident.planned) == [batch for batch, _ in result.tried]


def test_batches_beyond_the_first_failure_are_reported(resident: Resident) -> None:
    """For example, a workspace may be larger at 4 samples than at 5 to 9."""
    Resident.said = lambda context: context.graph.trace.info.batch in (1, 2, 3, 5, 6, 7, 8, 9)
    result = max_batch(CHAIN, node(10_000), [resident])
    (each,) = result
    assert each.batch == 3
    assert each.islands == (5, 7, 8, 9)
    assert each.note == "islands"
    assert result.notes() == [
        "resident: larger batches fit again (7, 8, 9 among others): convolutions change their algorithm, or blocks fit "
        "into holes"
    ]


def test_a_policy_with_a_wrong_prediction_has_no_largest_batch(resident: Resident) -> None:
    Resident.said = lambda context: context.graph.trace.info.batch <= 100
    result = max_batch(CHAIN, node(10_000), [resident])
    (each,) = result
    assert (each.batch, each.result, each.note) == (None, None, "failed")
    assert result.notes()[0].startswith("resident: predicted to fit, but ran out: out of device memory")


def test_if_no_sample_fits_the_memory_for_one_is_reported() -> None:
    result = max_batch(CHAIN, node(400), ["none", "ideal"])
    assert result.nothing_fits
    assert [each.note for each in result] == ["none fits", "unlimited"]
    assert "out of device memory" in result.notes()[0]
    assert result["none"].tried == ((1, False),)
    assert not max_batch(CHAIN, node(600), ["none", "ideal"]).nothing_fits


@pytest.mark.slow
def test_a_batch_split_into_sub_batches_is_limited_only_by_the_search_limit() -> None:
    trace = build_trace("resnet20", batch=64, gpu=GPU.gpu)
    result = max_batch(trace, GPU, ["vdnn+"], budget="64 MiB", limit=1000)
    assert (result["vdnn+"].batch, result["vdnn+"].note) == (1000, "capped")
    assert max(batch for batch, _ in result["vdnn+"].tried) == 1000
    assert "batches larger than 1000 were not tried" in result.notes()[0]


def test_a_refusal_does_not_end_the_search_for_others() -> None:
    result = max_batch(CHAIN, node(10_000), ["cdma", "none", "cswap"])
    assert [(each.batch, each.note) for each in result] == [(None, "refused"), (16, ""), (None, "refused")]
    assert not result.nothing_fits
    assert result.notes()[0].startswith("cdma: ")
    with pytest.raises(InputError, match=r"node\.gpu\.cdma"):
        max_batch(CHAIN, node(10_000), ["cdma"])


def test_a_single_policy_name_is_accepted() -> None:
    assert [each.run.label for each in max_batch(CHAIN, node(10_000), "vdnn")] == ["vdnn"]


@pytest.mark.parametrize(
    ("note", "message"),
    [
        (
            "adopted: the program of vdnn(mode=conv, algorithms=x), faster",
            "adopted: the program of vdnn(mode=conv, algorithms=x)",
        ),
        ("adopted: the program of home, faster than what was found", "adopted: the program of home"),
        ("adopted: offload all, smallest algorithms", "adopted: offload all, smallest algorithms"),
        ("trial: keep all: fits", ""),
    ],
)
def test_a_row_has_the_note_of_the_program(
    note: str, message: str, resident: Resident, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(self: Resident, context: PlanContext) -> Program:
        return replace(lower(context.graph, Placement()), notes=("first", note))

    Resident.said = lambda context: None
    monkeypatch.setattr(Resident, "plan", plan)
    (each,) = max_batch(CHAIN, node(10_000), [resident])
    assert each.note == message


def test_a_recording_without_reads_is_refused() -> None:
    kernels = tuple(replace(kernel, reads=()) for kernel in CHAIN.kernels)
    blocks = tuple(replace(block, release="end", persistent=True) for block in CHAIN.blocks)
    info = replace(CHAIN.info, origin=Origin.IMPORTED)
    with pytest.raises(InputError, match="does not state what kernels read"):
        max_batch(replace(CHAIN, info=info, kernels=kernels, blocks=blocks), node(10_000), ["none"])


def test_a_step_of_micro_batches_is_refused_before_the_search() -> None:
    forward, *others = CHAIN.kernels
    again = replace(forward, id="second", writes=(), phase=Phase.FORWARD)
    with pytest.raises(InputError, match="forward runs again after backward"):
        max_batch(replace(CHAIN, kernels=(forward, *others, again)), node(10_000), ["none"])


@pytest.mark.slow
def test_arguments_override_a_scenario() -> None:
    scenario = load_scenario("quickstart")
    result = max_batch(scenario, policies=["none"], budget="20 MiB")
    assert result.budget == 20 * 2**20
    same = max_batch(scenario.trace, scenario.node, ["none"], budget=20 * 2**20)
    assert result.to_dict() == same.to_dict()
    assert "modelled at batches other than 32" in result.caption
    assert [each.run.label for each in max_batch(scenario, limit=8)] == ["ideal", "none", "vdnn(mode=conv)", "vdnn"]


@pytest.mark.slow
def test_the_policy_gets_the_addressed_pool() -> None:
    """HOME's prediction for the counting pool does not hold for the addressed pool, where only a run decides."""
    trace = chain([5, 7, 9, 9], [10, 14, 18, 18], [100, 300, 200, 400])
    answers = {pool: max_batch(trace, node(10_000), "home", pool=pool)["home"] for pool in ("counting", "addressed")}
    batches = {pool: each.batch for pool, each in answers.items()}
    assert answers["addressed"].note != "failed"
    assert 0 < (batches["addressed"] or 0) < (batches["counting"] or 0)


def test_alignment_lowers_the_largest_batch() -> None:
    """Each block of the 600 bytes per sample is rounded up."""
    assert max_batch(CHAIN, node(9_000), ["none"])["none"].batch == 15
    assert max_batch(CHAIN, node(9_000), ["none"], alignment=1000)["none"].batch == 13
    assert max_batch(CHAIN, node(9_000, alignment=1000), ["none"])["none"].batch == 13


def test_wrong_arguments_are_reported_together() -> None:
    with pytest.raises(InputError) as caught:
        max_batch(CHAIN, node(1), ["none"], limit=0, iterations=0, seed=-1, pool="adressed")  # type: ignore[arg-type]
    assert [problem.place for problem in caught.value.problems] == [
        "argument limit",
        "argument iterations",
        "argument seed",
        "argument pool",
    ]
    for wrong in (None, "quickstart"):
        with pytest.raises(InputError, match="neither a trace nor a scenario"):
            max_batch(wrong, GPU)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="argument node: is missing"):
        max_batch(CHAIN)


def test_a_scenario_with_several_gpus_is_refused() -> None:
    with pytest.raises(InputError, match=r"for one GPU, and .* trains on 2"):
        max_batch(load_scenario("quickstart", {"node": "k40-x4", "data_parallel.gpus": 2}))


@pytest.fixture(scope="module")
def mixed() -> MaxBatch:
    return max_batch(CHAIN, node(10_000), ["ideal", "none", "vdnn", "cswap"])


def test_a_result_of_max_batch_prints_as_a_table(mixed: MaxBatch) -> None:
    lines = repr(mixed).splitlines()
    speed = mixed["none"].recommended
    assert speed is not None
    rate = speed.samples_per_s
    assert lines[0] == "chain; modelled, not recorded, for hand-made; small: gpu, 9.766 KiB"
    assert [line.split()[:3] for line in lines[1:4]] == [
        ["policy", "batch", "samples/s"],
        ["ideal", "-", "-"],
        ["none", "16", f"{rate:.0f}"],
    ]
    assert [lines[4].split()[at] for at in (1, 4, 6)] == ["20", "20", "1.25x"]
    assert "batch: recommended, the largest with at least 80% of the best throughput among those simulated" in repr(
        mixed
    )
    assert all(text in mixed._repr_html_() for text in ("<caption>chain", "<td>1.25x</td>"))


def test_the_frame_of_max_batch_has_all_numbers(mixed: MaxBatch) -> None:
    frame = mixed.frame()
    assert list(frame.index) == ["ideal", "none", "vdnn", "cswap"]
    assert frame.loc["vdnn", "batch"] == 20
    assert frame.loc["vdnn", "vs_none"] == 1.25
    result = mixed["none"].result
    assert result is not None
    assert frame.loc["none", "samples_per_s"] == result.metrics.samples_per_s == 16 * 10**9 / result.iteration_ns
    assert frame.loc["vdnn", "recommended_batch"] == 20
    assert frame.loc["none", "recommended_samples_per_s"] == frame.loc["none", "samples_per_s"], "the same batch"
    assert frame.loc["none", "recommended_slowdown"] == result.metrics.slowdown
    assert frame.loc[["ideal", "cswap"], ["batch", "samples_per_s", "recommended_batch"]].isna().all(axis=None)
    assert set(frame["budget_bytes"]) == {10_000}


def test_plain_data_lists_every_batch_that_was_tried(mixed: MaxBatch) -> None:
    document = mixed.to_dict()
    assert [each["largest_batch"] for each in document["policies"]] == [None, 16, 20, None]
    tried = document["policies"][1]["tried"]
    assert {"batch": 16, "fits": True} in tried
    assert {"batch": 17, "fits": False} in tried
    assert document["policies"][1]["run"]["trace"]["batch"] == 16
    assert document["policies"][1]["recommended"]["batch"] == 16
    assert [each["batch"] for each in document["policies"][1]["speeds"]] == [1, 2, 4, 8, 16]
    assert document["policies"][0]["recommended"] is None
    with pytest.raises(KeyError):
        _ = mixed["nothing"]
    assert len(mixed) == 4


def test_without_device_memory_there_is_no_largest_batch() -> None:
    result = simgpu.max_batch(simgpu.load_trace("vgg11-cifar-cpu"), simgpu.load_node("laptop-2gb"), ["um"])["um"]
    assert result.unlimited
    assert result.batch is None
    assert list(result.sentences()) == ["no block has to be in device memory, so any batch fits"]
