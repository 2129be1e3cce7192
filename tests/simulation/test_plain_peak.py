"""Budgets that are a part of the peak without offloading: bytes in every result, and what they are a part of."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

import simgpu
from simgpu.cli.settings import parse_budget
from simgpu.errors import InputError, OutOfMemoryError
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.simulation.config import RunConfig
from simgpu.simulation.plain_peak import PeakPart, plain_peak
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain
from simgpu.trace.stats import trace_stats

#: Its peak is 301 bytes: both feature maps at once.
TRACE = chain([5, 7], [10, 14], [101, 200])
NODE = NodeSpec("bench", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**10, 10**10))


def test_a_percentage_is_that_part_of_the_peak_rounded_down() -> None:
    for percentage, expected in (("50%", 150), ("99.9%", 300), ("100%", 301), ("150 %", 451)):
        result = simulate(TRACE, NODE, "ideal", budget=percentage)
        assert result.budget == expected
        about = result.to_dict()
        assert (about["budget_bytes"], about["plain_peak_bytes"]) == (expected, 301)
        assert about["budget_part"] == percentage.replace(" ", "")
        assert "of the peak without offloading, 301 B" in repr(result)


@pytest.mark.parametrize("pool", ["counting", "addressed", "caching"])
def test_the_peak_is_the_smallest_memory_in_which_none_fits_in_the_same_pool(pool: str) -> None:
    trace, node = simgpu.load_trace("resnet20-cifar-cpu"), simgpu.load_node("laptop-2gb")
    whole = simulate(trace, node, "none", budget="100%", pool=pool, alignment=512)
    assert whole.budget == whole.high_water
    with pytest.raises(OutOfMemoryError):
        simulate(trace, node, "none", budget="99.9%", pool=pool, alignment=512)


def test_the_alignment_counts_and_without_it_the_peak_is_the_recorded_one() -> None:
    aligned = replace(NODE, gpu=replace(NODE.gpu, alignment=100))
    assert (plain_peak(TRACE, NODE), plain_peak(TRACE, aligned)) == (301, 400)
    assert simulate(TRACE, NODE, "ideal", budget="50%", alignment=100).budget == 200
    trace = simgpu.load_trace("resnet20-cifar-cpu")
    peak = trace_stats(trace).peak_recorded
    assert peak is not None
    assert plain_peak(trace, NODE) == peak.bytes


@pytest.mark.parametrize("exchange", ["gather", "host"])
def test_with_several_gpus_it_is_the_peak_of_the_one_that_needs_most(exchange: str) -> None:
    trace, node = simgpu.load_trace("resnet20-cifar-cpu"), simgpu.load_node("k40-x4")
    settings: Any = {"gpus": 2, "exchange": exchange}
    simulate(trace, node, "none", budget="100%", **settings)
    with pytest.raises(OutOfMemoryError):
        simulate(trace, node, "none", budget="99.9%", **settings)


def test_repeated_runs_of_a_program_report_the_budget_of_each() -> None:
    results = [simulate(TRACE, NODE, "vdnn", budget=budget) for budget in ("200%", 602, "210%", "200%")]
    assert [result.to_dict().get("budget_part") for result in results] == ["200%", None, "210%", "200%"]
    assert {type(curve.capacity) for result in results for curve in result.timeline.memories} <= {int, type(None)}


@pytest.mark.parametrize("text", ["0%", "0.0 %", "-5%", "%", "1e3%", "half%"])
def test_a_percentage_of_zero_or_less_or_no_number_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"argument budget: .* is not a percentage above 0%: write for example '50%'$"):
        RunConfig(budget=text)


@pytest.mark.parametrize("text", ["50", "50 q", "half"])
def test_a_budget_without_a_unit_may_be_meant_as_a_percentage(text: str) -> None:
    for read in (lambda: RunConfig(budget=text), lambda: parse_budget(text, "--budget")):
        with pytest.raises(InputError) as caught:
            read()
        message = str(caught.value)
        assert message.endswith("; a budget may also be a part of the peak without offloading, such as '50%'")
        assert message.count("8 GiB") <= 1 and message.count("50%") == 1


def test_a_trace_without_tensors_has_no_peak() -> None:
    empty = replace(TRACE, kernels=tuple(replace(each, reads=(), writes=()) for each in TRACE.kernels), blocks=())
    with pytest.raises(InputError) as caught:
        simulate(empty, NODE, "ideal", budget="50%")
    (problem,) = caught.value.problems
    assert problem.place == "argument budget"
    assert "'50%' needs the peak without offloading" in problem.what
    assert "the trace has no tensors" in problem.what
    assert problem.remedy == "give a size such as '8 GiB'"


def test_a_percentage_needs_a_trace() -> None:
    with pytest.raises(InputError, match=r"'50%' is a part of the peak of a trace, and there is no trace here"):
        RunConfig(budget="50%").on(NODE)


def test_copies_of_a_part_keep_its_peak() -> None:
    part = PeakPart(Fraction(1, 2), 301)
    for same in (pickle.loads(pickle.dumps(part)), copy.deepcopy(part)):
        assert (same, same.part, same.peak) == (150, Fraction(1, 2), 301)
