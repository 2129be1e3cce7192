"""``simgpu memory-bound``: all tensors at once, the peak, both bounds, equation 8's sub-batch and what fits by
simulation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from simgpu.errors import OutOfMemoryError
from simgpu.experiments.max_batch import what_fits
from simgpu.experiments.scenarios.load import load_scenario
from simgpu.hardware.nodes import load_node
from simgpu.policies.common.sub_batches import select_sub_batch
from simgpu.simulation.run import simulate, task_graph
from simgpu.trace.chain import chain
from simgpu.trace.folder import write_trace
from simgpu.trace.model import Origin
from simgpu.workloads.modelled import build_trace
from simgpu.workloads.rescale import at_batch
from tests.cli.cli_helpers import make_study, simgpu

ZOO = ("zoo:resnet34", "--batch", 256, "--node", "k40", "--framework", "fused", "--optimizer", "plain-sgd")


def printed(*arguments: object) -> str:
    done = simgpu("memory-bound", *arguments)
    assert done.exit_code == 0, done.output
    return " ".join(done.stdout.split())


def document(*arguments: object) -> dict:
    done = simgpu("memory-bound", *arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def refused(*arguments: object) -> str:
    done = simgpu("memory-bound", *arguments)
    assert done.exit_code == 2
    return " ".join(done.stderr.split())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A trace of a batch of 4: x1 of 40 bytes and x2 of 80."""
    trace = chain([5, 7], [10, 14], [40, 80])
    write_trace(replace(trace, info=replace(trace.info, batch=4)), tmp_path / "small")
    return tmp_path / "small"


def test_each_memory_bound_is_shown_with_its_limiting_operator_and_parts(folder: Path) -> None:
    result = document(folder, "--budget", "60B")
    assert result["all_at_once"] == {
        "bytes": 120,
        "kernel": None,
        "op": None,
        "task": None,
        "shares": {"activation": 80, "input": 40},
    }
    assert result["bound"] == {
        "bytes": 30,
        "kernel": "F1",
        "op": "conv2d",
        "task": "FP",
        "shares": {"activation": 20, "input": 10},
    }
    assert result["offloaded"] == result["bound"]
    assert result["saved"]["bound"] == 4.0
    assert (result["bounds_batch"], result["whole_batch_reason"], result["alignment"], result["node"]) == (
        1,
        None,
        1,
        None,
    )
    assert result["sub_batch"] == {
        "size": 2,
        "batch": 4,
        "fits": True,
        "steps": [[4, 2], [2, 2]],
        "whole_batch_reason": "",
    }


def test_printed_values_equal_json_values(folder: Path) -> None:
    text = printed(folder, "--budget", "60B")
    rows = "all tensors 120 B - lower bound 30 B 4.0x F1 (conv2d) weights offloaded 30 B 4.0x F1 (conv2d)"
    assert rows in text
    assert "activation 80 B 20 B 20 B input 40 B 10 B 10 B" in text
    assert "lower bounds for a sub-batch of 1; each convolution uses its algorithm with the smallest workspace" in text
    assert "sub-batch 2 of 4 samples in 60 B (moDNN, equation 8) profiled at -> chosen: 4 -> 2, 2 -> 2" in text
    assert "simulated nothing: give --node (a simulation needs its link)" in text


@pytest.mark.parametrize(
    "budget, text",
    [
        ("120B", "the whole batch of 4 in 120 B"),
        ("30B", "1 of 4 samples in 30 B"),
        ("29B", "none: 29 B is below the lower bound"),
    ],
)
def test_the_sub_batch_is_printed(folder: Path, budget: str, text: str) -> None:
    assert f"sub-batch {text} (moDNN, equation 8)" in printed(folder, "--budget", budget)


def test_without_a_node_or_memory_there_is_no_sub_batch(folder: Path) -> None:
    assert "sub-batch not computed: give --node or --budget" in printed(folder)
    assert document(folder)["sub_batch"] is None


def test_another_batch_scales_all_tensors_at_once_and_no_bound(folder: Path) -> None:
    four, eight = document(folder), document(folder, "--batch", 8)
    assert eight["all_at_once"]["bytes"] == 2 * four["all_at_once"]["bytes"]
    assert eight["bound"] == four["bound"]


@pytest.mark.slow
def test_a_zoo_network_is_bounded_with_the_given_budget() -> None:
    result = document(*ZOO, "--budget", "4GB")
    node = load_node("k40")
    trace = build_trace("resnet34", batch=256, gpu=node.gpu, framework="fused", optimizer="plain-sgd")
    graph = task_graph(trace, node)
    assert result["trace"] == "resnet34-b256-k40"
    assert result["sub_batch"]["size"] == select_sub_batch(graph, node.gpu, 4 * 10**9).size < 256
    text = printed(*ZOO, "--budget", "6.2GB")
    assert "sub-batch the whole batch of 256 in 5.774 GiB (moDNN, equation 8)" in text
    assert "optimizer excluded" in text
    assert "updates all weights at once; updating one at a time would not limit memory" in text


@pytest.mark.slow
def test_the_default_budget_is_the_memory_of_the_node() -> None:
    result = document(*ZOO)
    assert (result["node"], result["budget"]) == ("k40", load_node("k40").budget)


@pytest.mark.slow
def test_the_peak_is_that_of_the_policy_ideal() -> None:
    """The reported peak equals that of a run of `ideal`; all tensors at once take more."""
    outcome, scenario = document("quickstart"), load_scenario("quickstart")
    result = simulate(scenario.trace, scenario.node, "ideal")
    assert outcome["peak"]["bytes"] == result.metrics.device_peak_bytes < outcome["all_at_once"]["bytes"]
    assert "ideal" not in outcome
    assert "as under the policies none and ideal" in printed("quickstart")


@pytest.mark.slow
def test_reported_batches_fit_and_the_next_do_not() -> None:
    """Equation 8 allows 8 of 32 samples in 40 MiB, which a plain framework cannot run."""
    result, scenario = document("quickstart"), load_scenario("quickstart")
    trace, node, budget = scenario.trace, scenario.node, result["budget"]
    assert (result["sub_batch"]["size"], result["sub_batch"]["fits"]) == (8, True)
    assert result["simulated"]["sub_batch"] == {"modnn": "", "vdnn+": ""}
    largest = result["simulated"]["largest_batch"]
    assert largest["none"] < 32 < largest["vdnn"]
    for policy, batch in largest.items():
        simulate(at_batch(trace, batch), node, policy, budget=budget)
        with pytest.raises(OutOfMemoryError):
            simulate(at_batch(trace, batch + 1), node, policy, budget=budget)


def test_a_sub_batch_that_does_not_run_is_reported() -> None:
    full = chain([5, 7], [10, 14], [40, 80])
    full = replace(full, info=replace(full.info, batch=4))
    node = replace(load_node("laptop-2gb"), gpu=replace(load_node("laptop-2gb").gpu, memory=10**9))
    result = what_fits(full, node, budget=59, sub_batch=2)
    assert result.sub_batch == {"modnn": "out of memory", "vdnn+": "out of memory"}  # F1 of 2 samples has 20 and 40
    assert result.largest_batch == {"none": 1, "vdnn": 1}


def test_a_scenario_supplies_trace_node_budget_and_alignment(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    study.write_text(study.read_text() + "budget: 1 GiB\nalignment: 512 B\n")
    result = document(study)
    assert (result["trace"], result["node"], result["budget"], result["alignment"]) == ("chain", "bench", 2**30, 512)
    assert result["bound"]["bytes"] % 512 == 0
    assert document(study, "--budget", "2MiB")["budget"] == 2 * 2**20


@pytest.mark.slow
def test_a_shipped_scenario_is_accepted_by_name() -> None:
    assert document("quickstart")["trace"] == "resnet20-cifar-cpu"


def test_bounds_of_an_iteration_that_cannot_be_rescaled_carry_a_note(tmp_path: Path) -> None:
    trace = chain([5, 7], [10, 14], [40, 80])
    info = replace(trace.info, batch=4)
    unread = tuple(replace(each, reads=()) for each in trace.kernels)
    write_trace(replace(trace, info=replace(info, origin=Origin.IMPORTED), kernels=unread), tmp_path / "unread")
    text = printed(tmp_path / "unread", "--budget", "120B")
    assert "bounds for the whole batch of 4" in text
    assert "cannot be modelled at another batch size: unread: kernels.reads: the recording does not state" in text
    assert "sub-batch the whole batch of 4 in 120 B (moDNN, equation 8)" in text


@pytest.mark.parametrize(
    "arguments, text",
    [
        (("zoo:vgg16", "--node", "k40"), "Missing option '--batch'"),
        (("zoo:vgg16", "--batch", 4), "Missing option '--node'"),
        (("zoo:vgg61", "--batch", 4, "--node", "k40"), "'vgg61' is not in the zoo; did you mean 'vgg16'?"),
        (("vgg16",), "vgg16 is a network of the zoo, not a trace; write zoo:vgg16, with --batch and --node"),
        (("vgg16-b128-v100", "--framework", "cudnn"), "--framework applies only to zoo:NETWORK"),
        (("quickstart", "--node", "v100"), "scenario quickstart has its own node"),
        (("vgg16-b128-v100", "--budget", "much"), "--budget: 'much'"),
        (
            ("vgg16-b128-v100", "--node", "k40", "--budget", "13GiB"),
            "--budget: 13 GiB exceeds the 12 GiB capacity of node k40; lower it, or name another node",
        ),
        (("nowhere",), "no shipped trace is called 'nowhere'"),
        (("vgg16-b128-v100", "--batch", 0), "Invalid value for '--batch'"),
    ],
)
def test_wrong_options_are_refused_with_a_remedy(arguments: tuple[object, ...], text: str) -> None:
    assert text in refused(*arguments)


@pytest.mark.slow
def test_data_parallel_training_is_bounded_for_the_share_of_one_gpu(tmp_path: Path) -> None:
    study = tmp_path / "four.yaml"
    study.write_text(
        "schema: simgpu.scenario/2\n"
        "trace: {zoo: resnet20, batch: 128}\n"
        "node: k40-x4\n"
        "policies: none\n"
        "data_parallel: {gpus: 4}\n"
    )
    four = json.loads(simgpu("memory-bound", study, "--json").stdout)
    share = json.loads(simgpu("memory-bound", "zoo:resnet20", "--batch", "32", "--node", "k40", "--json").stdout)
    assert four["all_at_once"]["bytes"] == share["all_at_once"]["bytes"]
    assert four["sub_batch"] == share["sub_batch"]
