"""What-if answers come from runs on a changed node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simgpu import load_node, load_scenario
from simgpu.compression.codecs.gpu.response import response_of
from simgpu.errors import InputError, OutOfMemoryError
from simgpu.explain.what_if import Answer, answer_rows, what_if, with_instant_codecs
from simgpu.simulation.run import simulate

QUICK = load_scenario("quickstart")


def by_change(answers: tuple[Answer, ...]) -> dict[str, Answer]:
    return {answer.change: answer for answer in answers}


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["vdnn", "capuchin", "modnn"])
def test_each_answer_equals_a_run_on_the_changed_node(policy: str) -> None:
    node = load_node("laptop-2gb", {"gpu.memory": "20 MiB", "gpu.copy_engines": 1})
    outcome = by_change(what_if(QUICK.trace, node, policy, more_memory="8 MiB"))
    changed = {
        "baseline": {},
        "2x link bandwidth": {"link.d2h_bandwidth": "2 GB/s", "link.h2d_bandwidth": "2 GB/s"},
        "+8 MiB device memory": {"gpu.memory": "28 MiB"},
        "second copy engine": {"gpu.copy_engines": 2},
    }
    for change, overrides in changed.items():
        base = {"gpu.memory": "20 MiB", "gpu.copy_engines": 1}
        result = outcome[change].result
        assert result is not None
        assert (
            result.iteration_ns == simulate(QUICK.trace, load_node("laptop-2gb", base | overrides), policy).iteration_ns
        )
    assert outcome["instant codecs"] == Answer("instant codecs", None, "no codec runs")


def test_a_node_with_an_engine_for_each_direction_needs_no_second_one() -> None:
    result = by_change(what_if(QUICK.trace, QUICK.node, "vdnn"))
    assert result["second copy engine"].note == "the node has one per direction"


def test_more_memory_can_make_a_run_fit() -> None:
    result = by_change(what_if(QUICK.trace, QUICK.node, "none", more_memory="10 MiB"))
    assert isinstance(result["baseline"].outcome, OutOfMemoryError)
    assert result["+10 MiB device memory"].result is not None


def test_a_policy_that_refuses_the_trace_is_an_error() -> None:
    with pytest.raises(InputError, match="codec times of GPU"):
        what_if(QUICK.trace, QUICK.node, "cswap")


def test_instant_codecs_take_no_time_in_the_run_and_in_its_planning() -> None:
    scenario = load_scenario("vgg16-v100")
    parameters: dict[str, object] = {"launch": "expert"}
    result = by_change(what_if(scenario.trace, scenario.node, "static", parameters=parameters, budget=scenario.budget))
    now, instant = result["baseline"].result, result["instant codecs"].result
    assert now is not None
    assert instant is not None
    assert now.metrics.breakdown.codec > 0 == instant.metrics.breakdown.codec
    assert instant.iteration_ns < now.iteration_ns


def test_a_gpu_with_instant_codecs_has_the_same_codecs_and_no_times() -> None:
    gpu = load_node("v100").gpu
    surface = response_of(replace(gpu, instant_codecs=True))
    assert surface.codecs == response_of(gpu).codecs
    assert surface.encode_ns("zvc", 10**9, 0.5, 80, 64) == surface.decode_ns("zvc", 10**9, 0.5, 80, 64) == 0
    assert surface.encode_times("zvc", [10**9, 7], 0.5, 80, 64).tolist() == [0, 0]


def test_an_infinitely_fast_compressing_dma_engine_is_bound_only_by_link_and_dram() -> None:
    node = load_node("titan-x-maxwell-cdma")
    instant = with_instant_codecs(node).gpu.cdma
    assert instant is not None
    assert node.gpu.cdma is not None
    assert (instant.codec, instant.kernel_bandwidth) == (node.gpu.cdma.codec, node.gpu.cdma.kernel_bandwidth)
    assert instant.peak > 10**18


def test_with_instant_codecs_compressed_memory_has_no_decompression_latency() -> None:
    buddy = with_instant_codecs(load_node("buddy-gpu")).gpu.buddy
    assert buddy is not None
    assert buddy.decompression_ns == 0


def test_a_change_that_needs_more_host_memory_reports_it() -> None:
    lacks = [OutOfMemoryError("copy of block x", space, 8, 4, 4, 4, 0) for space in ("host", "device")]
    rows = answer_rows((*what_if(QUICK.trace, QUICK.node, "vdnn")[:1], *(Answer("changed", error) for error in lacks)))
    assert rows[1:] == [("changed", "OOM", "", "host memory"), ("changed", "OOM", "", "")]


def test_answers_print_as_a_table() -> None:
    lines = repr(what_if(QUICK.trace, QUICK.node, "vdnn")).splitlines()
    assert lines[0].split() == ["what", "if", "step", "time", "change", "note"]
    assert lines[2].split() == ["2x", "link", "bandwidth", "124.1", "ms", "-19.8%"]


def test_an_invalid_amount_of_memory_is_reported() -> None:
    with pytest.raises(InputError, match="argument more_memory: 'much'"):
        what_if(QUICK.trace, QUICK.node, "vdnn", more_memory="much")
