"""Every shipped study gives the ratios on record, in its first and its last epoch, to four digits.

After a wanted change, write them anew with ``pytest tests/experiments/test_golden_studies.py --regen-all`` and say in
the commit why they changed.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from pytest_regressions.data_regression import DataRegressionFixture

from simgpu.experiments.study import StudyResult, run_study
from simgpu.hardware.nodes import load_node
from simgpu.scenario.catalogue import shipped_studies
from simgpu.scenario.load_study import load_study

CLAIMS = Path(__file__).parents[3] / "shared" / "claims.yaml"
CSWAP = ["cswap-6a", "cswap-6b", "cswap-6c", "cswap-6d"]
CDMA = ["cdma-13-maxwell", "cdma-13-pascal"]


@cache
def ends(name: str) -> StudyResult:
    """The study in two epochs."""
    return run_study(load_study(name, {"epochs": [0, 48]}))


@pytest.fixture(scope="module")
def claims() -> dict[str, Any]:
    """By id, the figure that a paper states."""
    if not CLAIMS.exists():
        pytest.skip("the papers' claims are not beside the repository (../shared/claims.yaml)")
    document = yaml.safe_load(CLAIMS.read_text(encoding="utf-8"))
    rows = [row for rows in document.values() if isinstance(rows, list) for row in rows]
    return {row["id"]: row["value"] for row in rows if "value" in row}


@pytest.mark.parametrize("name", shipped_studies())
def test_ratios_are_those_on_record(name: str, data_regression: DataRegressionFixture) -> None:
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


def test_the_host_codec_is_fitted_to_one_published_mean(claims: dict[str, Any]) -> None:
    """The whole study, as the node's file says; the second server has the same rate for each core."""
    changes = {"runs": {"vDNN++": {"policy": "vdnn++"}, "CSWAP": {"policy": {"cswap": {"launch": "grid_search"}}}}}
    study = load_study("cswap-6a", {**changes, "baseline": "vDNN++", "published": []})
    assert round(run_study(study).mean("CSWAP", "vDNN++") or 0, 2) == claims["cswap.v100.cifar.vs_vdnnpp"]
    hosts = [load_node(name).host for name in ("v100", "2080ti")]
    first, second = (host.codec_bandwidth / host.cores for host in hosts if host.codec_bandwidth and host.cores)
    assert second == pytest.approx(first, rel=0.005)


@pytest.mark.parametrize("name", CSWAP)
def test_what_takes_no_time_is_never_slower(name: str) -> None:
    result = ends(name)
    for trace in result.study.traces:
        for run in ("vDNN", "vDNN++", "static", "CSWAP"):
            ratio = result.ratio(trace, "oracle", run)
            assert ratio is not None
            assert ratio >= 1


@pytest.mark.parametrize("name", CDMA)
def test_an_engine_never_slows_and_nothing_is_faster_than_hidden_transfers(name: str) -> None:
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


def test_published_numbers_are_those_of_the_papers(claims: dict[str, Any]) -> None:
    """Rows that the studies put beside our numbers, against the list of the papers' claims."""

    def stated(name: str, run: str, over: str, of: str, measure: str = "throughput") -> float:
        (row,) = (
            row
            for row in load_study(name).published
            if (row.run, row.over, row.of, row.measure) == (run, over, of, measure) and not row.without[1:]
        )
        return row.value

    assert stated("cswap-6a", "CSWAP", "vDNN", "mean") == claims["cswap.v100.cifar.vs_vdnn"]
    assert stated("cswap-6a", "CSWAP", "vDNN++", "mean") == claims["cswap.v100.cifar.vs_vdnnpp"]
    assert stated("cswap-6a", "CSWAP", "vDNN++", "AlexNet") == claims["cswap.v100.cifar.vs_vdnnpp_max"]
    assert stated("cswap-6a", "CSWAP", "vDNN", "max", "time_saved") == claims["cswap.v100.cifar.time_saved"]
    named = [stated("cswap-6a", "CSWAP", "vDNN", trace, "time_saved") for trace in ("AlexNet", "Plain20")]
    assert named == claims["cswap.v100.cifar.alexnet"][:2]
    assert stated("cswap-6a", "oracle", "CSWAP", "max") == 1 + claims["cswap.v100.cifar.vs_oracle"]
    lower = claims["cswap.v100.cifar.vs_vdnn"] * (1 - claims["cswap.2080ti.slowdown"])
    assert stated("cswap-6b", "CSWAP", "vDNN", "mean") == round(lower, 2)
    assert stated("cswap-6c", "CSWAP", "vDNN", "mean", "time_saved") == claims["cswap.v100.imagenet.time_saved"]
    assert stated("cswap-6d", "CSWAP", "vDNN", "mean", "time_saved") == claims["cswap.2080ti.imagenet.time_saved"]
    for name in CSWAP:
        on = 0 if load_study(name).runs[0].node.name == "v100" else 1
        assert stated(name, "CSWAP", "static", "mean") == claims["cswap.vs_static"][on]
        assert stated(name, "CSWAP", "static", "max") == claims["cswap.vs_static.max"][on]
    for name, claim in zip(CDMA, ("cdma.gain.maxwell", "cdma.gain.pascal"), strict=True):
        gains = [stated(name, "ZV", "vDNN", of) for of in ("mean", "max")]
        assert gains == pytest.approx([1 + gain for gain in claims[claim]])
        left = [stated(name, "vDNN", "ideal", of) for of in ("mean", "min")]
        assert left == pytest.approx([1 - loss for loss in claims["cdma.vdnn.loss"]])
        zlib = [stated(name, "ZL", "ZV", of) for of in ("mean", "GoogLeNet")]
        assert zlib == pytest.approx([1 + gain for gain in claims["cdma.gain.zlib"]])
        assert stated(name, "BW", "ZV", "mean") == claims["cdma.bandwidth_aware"]


def test_batches_are_those_of_the_papers_tables() -> None:
    """CSWAP's table III: CIFAR10/ImageNet on the V100, then on the 2080Ti; cDMA's table II."""
    text = {name: [trace.info.batch for trace in load_study(name).traces.values()] for name in (*CSWAP, *CDMA)}
    assert text["cswap-6a"] == [2560] * 6
    assert text["cswap-6b"] == [2560, 1024, 2560, 1280, 1280, 1280]
    assert text["cswap-6c"] == [512, 32, 128, 128, 64, 512]
    assert text["cswap-6d"] == [256, 32, 32, 16, 128]
    assert text["cdma-13-maxwell"] == text["cdma-13-pascal"] == [256, 256, 128, 128, 512, 256]
