"""Every shipped study matches its golden numbers to four digits: trainings in their first and last epoch, moDNN on
some of its networks and budgets, HOME on some of its networks and batches.

After an intended change, regenerate them with ``pytest tests/experiments/test_golden_studies.py --regen-all`` and
say in the commit why they changed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import fmean

import pytest
from pytest_regressions.data_regression import DataRegressionFixture

from simgpu.experiments.scenarios.catalogue import shipped_studies
from simgpu.experiments.scenarios.load_study import load_study
from simgpu.experiments.study import StudyResult, run_study
from simgpu.experiments.study_measures import memory_of
from simgpu.experiments.study_tables import study_tables
from simgpu.hardware.nodes import load_node
from simgpu.trace.model import Phase, Trace
from simgpu.workloads.rescale.entry import at_batch
from tests.experiments.test_golden_buddy import BUDDY, SUMMARY
from tests.papers.published import published

pytestmark = pytest.mark.slow

CSWAP = ["cswap-6a", "cswap-6b", "cswap-6c", "cswap-6d"]
CDMA = ["cdma-13-maxwell", "cdma-13-pascal"]
#: By study the networks on record, of all those of the paper, and the budgets of its sweeps.
MODNN: dict[str, tuple[list[str], list[str]]] = {
    "modnn-10": (["VGG-16", "ResNet-34", "FCN-32s"], []),
    "modnn-12": (["VGG-16", "ResNet-34", "FCN-32s"], ["0.2 GB", "1.2 GB", "5 GB", "12 GB"]),
    "modnn-14": (["VGG-16", "ResNet-34", "FCN-32s"], []),
    "modnn-15": (["ResNet-34"], ["0.5 GB", "1 GB", "2 GB", "3 GB", "4 GB", "5 GB", "12 GB"]),
    "modnn-17": (["VGG-16", "ResNet-34"], []),
    "modnn-18": (["VGG-16", "ResNet-34"], ["6 GB", "3 GB"]),
}
#: The runs that HOME's table 2 has, as claims call them.
TABLE_2 = ("pytorch", "capuchin", "home")
_WITHOUT_RESNET = ("MobileNet", "SqueezeNet", "Plain20", "InceptionV3", "VGG16")
#: By study what is changed for the record: networks are left out, batches, and a run that takes long.
HOME: dict[str, dict[str, object]] = {
    "home-6": {
        **dict.fromkeys(("traces.MobileNet", "traces.SqueezeNet", "traces.Plain20", "traces.InceptionV3")),
        "traces.VGG16.batches": [2500, 3500, 5125],
        "traces.ResNet.batches": [1150, 1350, 2576],
    },
    "home-7": {"runs.joint": None},
    "home-table-2": dict.fromkeys(f"traces.{each}" for each in _WITHOUT_RESNET),
}


loaded = cache(load_study)


@cache
def ends(name: str) -> StudyResult:
    """The study restricted to its first and last epoch."""
    return run_study(load_study(name, {"epochs": [0, 48]}))


@cache
def part(name: str) -> StudyResult:
    """The study restricted to those networks and budgets."""
    networks, budgets = MODNN[name]
    study = loaded(name)
    runs = tuple(run for run in study.runs if not run.sweep or run.at in budgets)
    return run_study(replace(study, traces={label: study.traces[label] for label in networks}, runs=runs))


@cache
def some(name: str) -> StudyResult:
    """The study of HOME restricted to those networks and batches."""
    return run_study(load_study(name, HOME[name]))


def test_every_shipped_study_has_golden_numbers() -> None:
    assert sorted([*CSWAP, *CDMA, *MODNN, *HOME, *BUDDY]) == sorted(shipped_studies())


@pytest.mark.parametrize("name", [*CSWAP, *CDMA])
def test_ratios_match_the_golden_ones(name: str, data_regression: DataRegressionFixture) -> None:
    result = ends(name)
    data_regression.check(
        {
            over: {
                trace: {
                    run.label: None if (ratio := result.ratio(trace, run.label, over)) is None else f"{ratio:.4g}"
                    for run in result.study.runs
                }
                for trace in result.study.traces
            }
            for over in result.study.baseline
        }
    )


@pytest.mark.parametrize("name", [*MODNN, *HOME])
def test_tables_match_the_golden_ones(name: str, data_regression: DataRegressionFixture) -> None:
    result = some(name) if name in HOME else part(name)
    data_regression.check(
        {
            f"{table.title} {column}": {row[0]: row[1 + at] for row in table.rows if not SUMMARY.match(row[0])}
            for table in study_tables(result)
            for at, column in enumerate(table.headings[1:])
            if column not in ("batch", "batches") and not SUMMARY.match(column)
        }
    )


def test_the_host_codec_is_fitted_to_one_published_mean() -> None:
    """The complete study, as stated in the node's file; the second server has the same rate per core."""
    changes = {"runs": {"vDNN++": {"policy": "vdnn++"}, "CSWAP": {"policy": {"cswap": {"launch": "grid_search"}}}}}
    study = load_study("cswap-6a", {**changes, "baseline": "vDNN++", "published": []})
    gains = run_study(study).values("throughput", "CSWAP", "vDNN++").values()
    assert round(fmean(gain for each in gains for gain in each), 2) == published()["cswap.v100.cifar.vs_vdnnpp"]
    hosts = [load_node(name).host for name in ("v100", "2080ti")]
    first, second = (host.codec_bandwidth / host.cores for host in hosts if host.codec_bandwidth and host.cores)
    assert second == pytest.approx(first, rel=0.005)


@pytest.mark.parametrize("name", CSWAP)
def test_no_policy_is_faster_than_the_oracle_with_instant_codecs(name: str) -> None:
    result = ends(name)
    for trace in result.study.traces:
        for run in ("vDNN", "vDNN++", "static", "CSWAP"):
            ratio = result.ratio(trace, "oracle", run)
            assert ratio is not None
            assert ratio >= 1


@pytest.mark.parametrize("name", CDMA)
def test_an_engine_never_slows_a_run_and_no_run_is_faster_than_ideal(name: str) -> None:
    result = ends(name)
    for trace in result.study.traces:
        for run in ("RL", "ZV", "ZL", "BW"):
            for slow, fast in (("vDNN", run), (run, "ideal")):
                ratio = result.ratio(trace, fast, slow)
                assert ratio is not None
                assert ratio >= 1
        held = result.ratio(trace, "BW", "ZV")
        assert held is not None
        assert held <= 1


@pytest.mark.parametrize("name", MODNN)
def test_no_run_is_faster_than_its_kernels_and_four_gpus_never_four_times_as_fast(name: str) -> None:
    """Sub-batches can be faster than ideal, which the board limits to slower algorithms; not than their own kernels."""
    result = part(name)
    ideal = result.study.baseline[0]
    for trace in result.study.traces:
        in_parts = compute_ns(result.study.traces[trace]) / fastest_in_parts_ns(result.study.traces[trace])
        for run in result.study.runs:
            ratio = result.ratio(trace, run.label, ideal)
            most = in_parts if run.policy.name in ("modnn", "vdnn+") else 1
            assert ratio is None or ratio <= most * (run.data_parallel.gpus if run.data_parallel else 1)


def compute_ns(trace: Trace) -> int:
    return sum(kernel.duration_ns for kernel in trace.kernels)


@cache
def fastest_in_parts_ns(trace: Trace) -> float:
    """The least that the kernels of all samples take in sub-batches, and the optimizer once."""
    batch, optimizer = trace.info.batch, sum(k.duration_ns for k in trace.kernels if k.phase is Phase.OPTIMIZER)
    sizes = sorted({*(2**power for power in range(7)), *range(64, batch, 64), batch})
    parts = {size: at_batch(trace, size) for size in sizes}
    work = {
        size: sum(k.duration_ns for k in part.kernels if k.phase is not Phase.OPTIMIZER) for size, part in parts.items()
    }
    return optimizer + min(time * batch / size for size, time in work.items())


def test_modnn_runs_out_of_memory_only_below_its_lower_bound() -> None:
    result = part("modnn-12")
    for label, trace in result.study.traces.items():
        bound = memory_of(trace)["bound"]
        for run in result.study.members("moDNN"):
            assert run.budget is not None
            fits = not result.cells[label, run.label].out_of_memory
            assert fits == (run.budget >= bound)


def test_mean_power_hardly_rises_and_peak_power_falls_with_the_sub_batch() -> None:
    """Section 7.4, figure 15; the sub-batch falls with the budget."""
    result = part("modnn-15")
    cells = [result.cells["ResNet-34", run.label] for run in result.study.members("moDNN")]
    largest = [cell.peak_power or 0 for cell in cells]
    assert largest == sorted(largest)
    assert largest[0] < largest[-1]
    (added,) = (row.simulated for row in result.comparisons() if row.published.measure == "power_increase")
    assert added is not None
    assert added <= published()["modnn.power"]


@pytest.mark.parametrize("name", ["modnn-17", "modnn-18"])
def test_exchanging_gradients_through_the_host_is_faster_than_gathering(name: str) -> None:
    result = part(name)
    pairs = {
        "modnn-17": [("moDNN", "ideal")],
        "modnn-18": [(f"1 core {at}", f"gather {at}") for at in ("6 GB", "3 GB")],
    }
    for trace in result.study.traces:
        for host, gather in pairs[name]:
            ratio = result.ratio(trace, host, gather)
            assert ratio is not None
            assert ratio > 1
    if name == "modnn-18":
        assert (result.ratio("VGG-16", "20 cores 3 GB", "1 core 3 GB") or 0) > 1


def test_published_numbers_of_modnn_match_the_paper() -> None:
    def stated(name: str) -> list[float]:
        return [row.value for row in loaded(name).published]

    assert stated("modnn-10") == [*published()["modnn.slowdown.k40"], published()["modnn.traffic"]]
    assert stated("modnn-12")[0] == published()["modnn.vs_vdnnplus"]
    memory = [published()[f"modnn.only.{technique}"] for technique in ("subbatch", "offload", "algorithm")]
    bounds = published()["modnn.memory.bound"]
    assert stated("modnn-14") == [*bounds, *(each[0] for each in memory), *(each[1] for each in memory)]
    assert stated("modnn-15") == [published()["modnn.power"]]
    assert stated("modnn-17") == published()["modnn.gpus.4"]
    assert stated("modnn-18") == [*published()["modnn.gpus.budgets"], *published()["modnn.gpus.equal_memory"]]


def test_joint_is_never_slower_than_another_policy() -> None:
    result = some("home-6")
    for trace in result.study.traces:
        for run in result.study.runs:
            if not result.cells[trace, run.label].failure:
                ratio = result.ratio(trace, "joint", run.label)
                assert ratio is not None
                assert ratio >= 1


def test_home_hides_its_transfers_as_in_figure_7() -> None:
    """On both networks within a point of the paper."""
    simulated = {
        (row.published.run, row.published.aggregate, row.published.measure): row for row in some("home-7").comparisons()
    }
    for network in ("InceptionV3", "VGG16"):
        assert abs(simulated["HOME", network, "swapping"].difference or 0) < 0.01
    assert published()["home.breakdown.inception"][0] == simulated["HOME", "InceptionV3", "swapping"].published.value


def test_a_policy_that_moves_or_recomputes_more_trains_larger_batches() -> None:
    result = some("home-table-2")
    for network in result.study.networks:
        batches = [result.value("largest_batch", network, run) or 0 for run in ("PyTorch", "vDNN", "Capuchin", "HOME")]
        assert batches == sorted(batches)
        assert batches[0] < batches[1] < batches[2]


def test_published_numbers_of_home_match_the_paper() -> None:
    def stated(name: str) -> list[float]:
        return [row.value for row in loaded(name).published]

    at_largest = dict(zip(loaded("home-table-2").traces, published()["home.throughput.home"], strict=True))
    figure = stated("home-6")
    assert figure[:6] == [*published()["home.vs.max"], *published()["home.vs_pytorch"]]
    assert figure[6:] == list(at_largest.values())
    overlap, home, recomputed, swapped, vdnn = published()["home.breakdown.vgg16"]
    assert stated("home-7") == [
        overlap,
        home,
        recomputed,
        swapped,
        vdnn,
        vdnn,
        *published()["home.breakdown.inception"],
    ]
    table = [published()[f"home.max_batch.{run}"] for run in TABLE_2]
    gains = [*published()["home.batch_gain"], published()["home.vs_capuchin.mean"][0], published()["home.vdnn_oom"]]
    assert stated("home-table-2") == [*(value for row in table for value in row), *gains]
    batches = {
        row.aggregate: loaded("home-6").traces[row.aggregate].info.batch for row in loaded("home-6").published[6:]
    }
    assert list(batches.values()) == published()["home.max_batch.home"]


def test_published_numbers_in_studies_match_the_claims_of_the_papers() -> None:
    """Published rows of the studies, compared with the claims of the papers."""

    def stated(name: str, run: str, vs: str, aggregate: str, measure: str = "throughput") -> float:
        (row,) = (
            row
            for row in loaded(name).published
            if (row.run, row.vs, row.aggregate, row.measure) == (run, vs, aggregate, measure) and not row.excluding[1:]
        )
        return row.value

    assert stated("cswap-6a", "CSWAP", "vDNN", "mean") == published()["cswap.v100.cifar.vs_vdnn"]
    assert stated("cswap-6a", "CSWAP", "vDNN++", "mean") == published()["cswap.v100.cifar.vs_vdnnpp"]
    assert stated("cswap-6a", "CSWAP", "vDNN++", "AlexNet") == published()["cswap.v100.cifar.vs_vdnnpp_max"]
    assert stated("cswap-6a", "CSWAP", "vDNN", "max", "time_saved") == published()["cswap.v100.cifar.time_saved"]
    named = [stated("cswap-6a", "CSWAP", "vDNN", trace, "time_saved") for trace in ("AlexNet", "Plain20")]
    assert named == published()["cswap.v100.cifar.alexnet"][:2]
    assert stated("cswap-6a", "oracle", "CSWAP", "max") == 1 + published()["cswap.v100.cifar.vs_oracle"]
    lower = published()["cswap.v100.cifar.vs_vdnn"] * (1 - published()["cswap.2080ti.slowdown"])
    assert stated("cswap-6b", "CSWAP", "vDNN", "mean") == round(lower, 2)
    assert stated("cswap-6c", "CSWAP", "vDNN", "mean", "time_saved") == published()["cswap.v100.imagenet.time_saved"]
    assert stated("cswap-6d", "CSWAP", "vDNN", "mean", "time_saved") == published()["cswap.2080ti.imagenet.time_saved"]
    for name in CSWAP:
        on = 0 if loaded(name).runs[0].node.name == "v100" else 1
        assert stated(name, "CSWAP", "static", "mean") == published()["cswap.vs_static"][on]
        assert stated(name, "CSWAP", "static", "max") == published()["cswap.vs_static.max"][on]
    for name, claim in zip(CDMA, ("cdma.gain.maxwell", "cdma.gain.pascal"), strict=True):
        gains = [stated(name, "ZV", "vDNN", of) for of in ("mean", "max")]
        assert gains == pytest.approx([1 + gain for gain in published()[claim]])
        left = [stated(name, "vDNN", "ideal", of) for of in ("mean", "min")]
        assert left == pytest.approx([1 - loss for loss in published()["cdma.vdnn.loss"]])
        zlib = [stated(name, "ZL", "ZV", of) for of in ("mean", "GoogLeNet")]
        assert zlib == pytest.approx([1 + gain for gain in published()["cdma.gain.zlib"]])
        assert stated(name, "BW", "ZV", "mean") == published()["cdma.bandwidth_aware"]


def test_batches_of_studies_match_the_tables_of_the_papers() -> None:
    """CSWAP's table III: CIFAR10/ImageNet on the V100, then on the 2080Ti; cDMA's table II; moDNN's section 7."""
    text = {name: [trace.info.batch for trace in loaded(name).traces.values()] for name in (*CSWAP, *CDMA)}
    assert text["cswap-6a"] == [2560] * 6
    assert text["cswap-6b"] == [2560, 1024, 2560, 1280, 1280, 1280]
    assert text["cswap-6c"] == [512, 32, 128, 128, 64, 512]
    assert text["cswap-6d"] == [256, 32, 32, 16, 128]
    for name, (networks, _) in MODNN.items():
        batches = [trace.info.batch for trace in loaded(name).traces.values()]
        assert batches == ([256] if len(networks) == 1 else [256, 256, 128, 256, 256, 128])
    assert text["cdma-13-maxwell"] == text["cdma-13-pascal"] == [256, 256, 128, 128, 512, 256]
