"""What an offload costs by sequence length: traces of decoders in sweeps, costs over a baseline, and a closed form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import simgpu
from simgpu.errors import InputError
from simgpu.experiments.scenarios.load import load_scenario, make_scenario
from simgpu.experiments.scenarios.load_sweep import load_sweep, make_sweep
from simgpu.experiments.sweep.costs import FREE, CostCurve
from simgpu.experiments.sweep.run import run_sweep
from simgpu.trace.model import BlockKind, Phase, Trace
from simgpu.workloads.configured.config import decoder_of
from simgpu.workloads.configured.modelled import decoder_iteration
from simgpu.workloads.configured.options import TrainingOptions
from tests.cli.cli_helpers import simgpu as command

SMALL = {"model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4}
SMALL |= {"num_attention_heads": 16, "vocab_size": 100, "name": "small"}
PLAIN = TrainingOptions(optimizer="plain-sgd")
DECODER = {key: value for key, value in SMALL.items() if key != "name"}
OFFLOAD = "offload_activations(saved_again=offloaded)"
LINKS = [20, 200]
LENGTHS = [1024, 8192, 65536]


def values(**changes: Any) -> dict[str, Any]:
    trace = {"model": DECODER, "name": "small", "length": 8192, "optimizer": "plain-sgd"}
    rates = [f"{link} GB/s" for link in LINKS]
    sweep = {
        "zip": [{"node.link.d2h_bandwidth": rates, "node.link.h2d_bandwidth": rates}],
        "grid": {"trace.length": LENGTHS},
    }
    policies = ["none", {"offload_activations": {"saved_again": "offloaded"}}]
    overrides = {"node.gpu.memory": "64 TiB"}
    fixed = {"node": "h100", "overrides": overrides, "policies": policies, "iterations": 2}
    return {"trace": trace, **fixed, "sweep": sweep, **changes}


def test_a_trace_of_a_decoder_is_modelled_in_the_scenario() -> None:
    scenario = make_scenario({**values(), "sweep": None} | {"policies": "none"}, "an example", {"trace.length": 512})
    trace = decoder_iteration(
        decoder_of(DECODER), batch=1, length=512, gpu=simgpu.load_node("h100").gpu, options=PLAIN
    ).trace
    assert scenario.trace.name == "small-b1-t512-h100"
    assert scenario.trace.kernels == trace.kernels
    assert scenario.trace.blocks == trace.blocks


def test_problems_of_a_decoder_are_at_their_keys() -> None:
    with pytest.raises(InputError) as error:
        make_scenario(values(trace={"model": {"model_type": "bert"}, "length": 0}, sweep=None), "an example")
    assert "trace.length" in str(error.value)
    with pytest.raises(InputError, match="model_type: 'bert' is not supported"):
        make_scenario(values(trace={"model": {"model_type": "bert"}, "length": 1}, sweep=None), "an example")


def test_a_configuration_is_a_file_relative_to_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DECODER))
    file = tmp_path / "mine.yaml"
    trace = "trace: {model: config.json, length: 256}"
    file.write_text(f"schema: simgpu.scenario/2\n{trace}\nnode: h100\npolicies: none\n")
    assert load_scenario(file).trace.info.batch == 1


def test_a_study_compares_policies_on_decoders(tmp_path: Path) -> None:
    traces = f"traces: {{small: {{model: {json.dumps(DECODER)}, length: 256}}}}"
    runs = "runs: {plain: {policy: none}, offload: {policy: offload_activations}}"
    file = tmp_path / "mine.yaml"
    file.write_text(f"schema: simgpu.study/2\nnode: h100\n{traces}\n{runs}\nbaseline: plain\n")
    cells = simgpu.run_study(simgpu.load_study(file)).cells
    assert cells["small", "offload"].iteration_ns > cells["small", "plain"].iteration_ns


def saved_bytes(trace: Trace) -> int:
    """Bytes that autograd saves, of activations without the output head, once for each time that they are saved."""
    blocks = trace.block_by_id
    kept = (row for row in trace.saved if blocks[row.block].kind is not BlockKind.WEIGHT)
    return sum(blocks[row.block].bytes for row in kept if not (row.layer or "").startswith(("lm_head", "loss")))


@pytest.mark.slow
def test_the_cost_of_an_offload_follows_from_quadratic_compute_and_linear_bytes() -> None:
    """A pass takes no less than its kernels and its copies, and no more than both one after the other.

    Bytes are linear in the length, and times of kernels have a quadratic part: so the copies are the longer part up to
    some length. Where they are four times as long, they are all that counts. Where attention takes most of the time,
    copies of other operators do not overlap with it. The stash saves some of the fetches.
    """
    result = run_sweep(make_sweep(values(), "an example"))
    curves = result.costs(["none"], "trace.length")
    assert len(curves) == len(LINKS)
    gpu, of_copies = simgpu.load_node("h100").gpu, 0
    for link, curve in zip(LINKS, curves, strict=True):
        assert [x for x, _ in curve.points] == LENGTHS
        for length, cost in curve.points:
            built = decoder_iteration(decoder_of(DECODER), batch=1, length=int(length), gpu=gpu, options=PLAIN)
            copies = saved_bytes(built.trace) / link  # ns, at GB/s
            passes = dict.fromkeys(Phase, 0)
            for kernel in built.trace.kernels:
                passes[kernel.phase] += kernel.duration_ns
            both = passes[Phase.FORWARD], passes[Phase.BACKWARD]
            took = (1 + cost) * sum(passes.values()) - passes[Phase.OPTIMIZER]
            least = sum(max(each, copies) for each in both)
            assert 0.9 * least <= took <= sum(both) + 2 * copies, (link, length)
            if copies > 4 * max(both):
                of_copies += 1
                assert took == pytest.approx(least, rel=0.1), (link, length)
    assert of_copies >= 2


def test_policies_are_compared_with_the_baseline_of_their_name() -> None:
    policies = ["none", "checkpoint", {"checkpoint": {"inputs": "waiting"}}, "offload_activations"]
    grid = {"grid": {"trace.length": [1024]}}
    result = run_sweep(make_sweep(values(policies=policies, sweep=grid), "an example"))
    curves = result.costs(["none", "checkpoint"])
    assert {each.label.partition("(")[0]: each.baseline for each in curves} == {
        "checkpoint": "checkpoint",
        "offload_activations": "none",
    }
    with pytest.raises(InputError, match="'nothing' is no policy"):
        result.costs(["nothing"])


def test_free_from_needs_every_longer_length_to_be_free() -> None:
    assert CostCurve("", "", ((1, FREE), (2, 2 * FREE), (3, FREE))).free_from == 3
    assert CostCurve("", "", ()).free_from is None


def test_unknown_baselines_are_refused_together_before_any_point_runs(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    baselines = ("--baseline", "nne", "--baseline", "checkpoint", "--baseline", "checkpont")
    done = command("sweep", "offload-by-length", "-o", folder, "-q", *baselines)
    assert done.exit_code == 2
    assert "'nne' is no policy of offload-by-length; did you mean 'none'?" in done.stderr
    assert "'checkpont' is no policy of offload-by-length; did you mean 'checkpoint'?" in done.stderr
    assert "'checkpoint' is no policy" not in done.stderr
    assert not folder.exists()


@pytest.mark.slow
def test_the_shipped_sweep_answers_on_the_command_line(tmp_path: Path) -> None:
    few = ["node=a100", "sweep.grid.trace.length=[512]", "policies=[checkpoint, {checkpoint: {inputs: overlapped}}]"]
    figure = tmp_path / "costs.svg"
    settings = [word for text in few for word in ("--set", text)]
    arguments = ["-o", tmp_path / "out", "-q", "-j", "1", "--baseline", "checkpoint", "--over", "trace.length"]
    done = command("sweep", "offload-by-length", *settings, *arguments, "--figure", figure)
    assert done.exit_code == 0, done.output
    assert "free from" in done.stdout
    assert "H100" not in done.stdout, "the description names no node, which a user may change"
    assert "tokens per sample" in figure.read_text()
    assert load_sweep("offload-by-length").count == 48
