"""``simgpu max-batch``: arguments, output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import simgpu as package
from simgpu.experiments.max_batch import max_batch
from simgpu.workloads.modelled import build_trace
from tests.cli.cli_helpers import make_study, simgpu


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A node of 8 GiB and a chain of 600 kB per sample."""
    return make_study(tmp_path)


def shown(*arguments: object) -> list[str]:
    done = simgpu("max-batch", *arguments)
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def refused(*arguments: object) -> str:
    done = simgpu("max-batch", *arguments)
    assert done.exit_code == 2
    assert "Traceback" not in done.output
    return " ".join(done.stderr.split())


def test_a_scenario_is_shown_with_one_line_per_policy(study: Path) -> None:
    lines = shown(study, "--budget", "6 MB")
    assert lines[0] == "study"
    assert lines[3].split() == ["node", "bench:", "a", "GPU,", "5.722", "MiB"]
    assert lines[5].split() == [
        "policy",
        "batch",
        "samples/s",
        "slowdown",
        "largest",
        "samples/s",
        "vs.",
        "none",
        "note",
    ]
    assert [[line.split()[at] for at in (0, 1, 4, 6)] for line in lines[7:9]] == [
        ["none", "10", "10", "1.00x"],
        ["vdnn", "12", "12", "1.20x"],
    ]
    assert lines[7].split()[3] == "1.000x"
    assert lines[6].split() == ["ideal", *"------", "unlimited"]
    assert "batch: recommended, the largest with at least 80% of the best throughput" in " ".join(lines[9:])
    assert max(map(len, lines)) <= 80


def test_a_trace_needs_a_node_and_accepts_policy_labels(study: Path) -> None:
    folder, node = study.parent / "chain", study.parent / "node.yaml"
    lines = shown(folder, "--node", node, "--policy", "none", "--policy", "vdnn(mode=conv)", "--budget", "6MB")
    assert [line.split()[:2] for line in lines[6:8]] == [["none", "10"], ["vdnn(mode=conv)", "12"]]
    assert "Missing option '--node'" in refused(folder)


@pytest.mark.slow
def test_a_zoo_network_accepts_all_settings_of_a_scenario() -> None:
    settings = ("trace.input=cifar10", "trace.framework=pytorch-1.5", "trace.variant.batch_norm=true", "iterations=2")
    arguments = ["zoo:squeezenet", "--node", "2080ti", "--budget", "1GiB", "--policy", "none", "--json"]
    done = simgpu("max-batch", *arguments, *(word for each in settings for word in ("--set", each)))
    document = json.loads(done.stdout)
    node = package.load_node("2080ti")
    trace = build_trace("squeezenet", batch=64, gpu=node.gpu, input="cifar10", framework="pytorch-1.5", batch_norm=True)
    result = max_batch(trace, node, ["none"], budget="1 GiB")
    assert document["policies"][0]["largest_batch"] == result["none"].batch
    assert document["trace"]["name"] == "squeezenet"
    assert document["policies"][0]["run"]["iterations"] == 2
    assert document["budget_bytes"] == 2**30


def test_the_option_most_limits_the_search(study: Path) -> None:
    lines = shown(study, "--limit", 5, "--policy", "none")
    assert lines[6].split()[:2] == ["none", "5"]
    assert lines[6].split()[-1] == "capped"
    assert lines[-1].startswith("none: batches larger than 5 were not tried")


def test_the_exit_code_is_3_if_no_sample_fits(study: Path) -> None:
    done = simgpu("max-batch", study, "--budget", "400 kB")
    assert done.exit_code == 3
    assert done.stdout.count("none fits") == 2
    assert "none: out of device memory" in done.stdout


def test_the_exit_code_is_2_if_every_policy_refuses(study: Path) -> None:
    assert "node.gpu.cdma" in refused(study, "--policy", "cdma")
    lines = shown(study, "--policy", "cdma", "--policy", "none")
    assert lines[6].split()[0] == "cdma"
    assert lines[6].split()[-1] == "refused"


def test_mistakes_are_reported_together_at_the_option() -> None:
    message = refused("zoo:mobil", "--node", "2080t", "--policy", "vdn", "--budget", "x")
    for place in ("--node: no shipped node", "--policy: unknown policy 'vdn'", "--budget: 'x' is not a size"):
        assert place in message
    assert "TRACE: 'mobil' is not in the zoo; did you mean 'mobilenet'" in refused("zoo:mobil", "--node", "2080ti")
    assert "TRACE: no shipped trace is called 'vgg16'" in refused("vgg16", "--node", "v100")
    message = refused("zoo:vgg16", "--node", "v100", "--set", "trace.variant.batchnorm=true")
    assert "trace.variant.batchnorm: is not one of its variants; did you mean 'batch_norm'" in message


def test_a_scenario_refuses_another_node_and_too_large_budgets(study: Path) -> None:
    assert "--set node=v100" in refused(study, "--node", "v100")
    message = refused(study, "--budget", "9 GiB")
    assert "budget: 9 GiB is more than the 8 GiB that node bench has" in message
