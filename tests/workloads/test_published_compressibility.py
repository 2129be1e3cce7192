"""The profile fitted to Buddy Compression's deep-learning workloads reproduces their published means."""

from __future__ import annotations

from functools import cache
from math import prod
from statistics import fmean

import pytest

import simgpu
from simgpu.trace.entries import mean_ratio
from simgpu.trace.model import BlockKind, Trace
from simgpu.workloads.compressibility.generator import CompressibilityProfile, load_profile, with_compressibility
from simgpu.workloads.modelled import build_trace

BATCHES = {"alexnet": 1024, "inception-v2": 64, "squeezenet1.1": 96, "vgg16": 128, "resnet50": 64, "biglstm": 32}


@cache
def networks() -> list[Trace]:
    gpu = simgpu.load_node("buddy-gpu").gpu
    variants = {"biglstm": {"vocabulary": 32768}}
    return [
        with_compressibility(
            build_trace(name, batch=batch, gpu=gpu, framework="cudnn", **variants.get(name, {})), "published"
        )
        for name, batch in BATCHES.items()
    ]


@pytest.mark.slow
def test_the_geometric_mean_ratio_over_eight_sizes_is_the_published_one() -> None:
    ratios = []
    for trace in networks():
        passing = {block.id for block in trace.blocks if block.kind is BlockKind.WORKSPACE}
        ratios.append(mean_ratio([row for row in trace.compressibility if row.block not in passing]))
    assert prod(ratios) ** (1 / len(ratios)) == pytest.approx(1.85, abs=0.005)


@pytest.mark.slow
def test_ratio_and_overflow_of_the_final_design_match_the_published_means() -> None:
    node = simgpu.load_node("buddy-gpu")
    result = [simgpu.simulate(trace, node, "buddy").metrics.compression for trace in networks()]
    assert all(result)
    assert fmean(each.ratio for each in result if each) == pytest.approx(1.5, abs=0.005)
    assert fmean(each.overflow_share for each in result if each) == pytest.approx(0.04, abs=0.001)


@pytest.mark.slow
def test_a_fitted_profile_is_marked_as_fitted() -> None:
    assert "fitted to the published means" in networks()[0].info.notes
    assert load_profile("published").recordings == ()


@pytest.mark.parametrize("words", [{}, {"recordings": ["a"], "fitted_to": "b"}])
def test_a_profile_is_measured_or_fitted(words: dict[str, object]) -> None:
    values = {"schema": "simgpu.compressibility/2", "epochs": (0,), "sizes": (0, 128), "roles": {}, **words}
    with pytest.raises(ValueError, match="write one of recordings, fitted_to"):
        CompressibilityProfile.model_validate(values)
