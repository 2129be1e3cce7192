"""`simgpu.fit`: what must hold between the answers to related questions, and facts that are computed in another way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import simgpu
from simgpu.experiments.compare import policy_from
from simgpu.experiments.fit.candidates import candidates
from simgpu.experiments.fit.question import Question
from simgpu.experiments.fit.result import Fit
from simgpu.experiments.fit.rows import FitRow, FitRun
from simgpu.experiments.fit.workloads import workload_of
from simgpu.simulation.config import RunConfig
from simgpu.trace.model import BlockKind
from simgpu.trace.stats import trace_stats
from simgpu.workloads.configured.config import read_decoder
from simgpu.workloads.configured.modelled import decoder_iteration
from simgpu.workloads.configured.options import LossForm, TrainingOptions

NODE = simgpu.load_node("rtx4090")
MIB = 2**20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama of four layers."""
    file = tmp_path_factory.mktemp("models") / "four.json"
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
    file.write_text(json.dumps({"model_type": "llama", **sizes, "vocab_size": 1000}))
    return file


def run_of(row: FitRow) -> FitRun:
    assert row.run is not None
    return row.run


@pytest.fixture(scope="module")
def answers(model: Path) -> dict[int, Fit]:
    """By budget in MiB, the answer for one sequence."""
    return {budget: simgpu.fit(model, NODE, batch=1, length=1024, budget=budget * MIB) for budget in (48, 60, 200)}


def test_a_fused_loss_in_micro_batches_takes_what_the_model_built_so_takes(model: Path) -> None:
    """Its chunks are those of a micro-batch."""
    workload = workload_of(model, {"loss": "fused"})
    question = Question(workload, NODE, 8, 1024, 2**40)
    [candidate] = [each for each in candidates(workload.options) if each.label == "as it is"]
    run = question.run(candidate, 8, 1024, 4)
    options = TrainingOptions(loss=LossForm.FUSED, micro_batches=4)
    built = decoder_iteration(read_decoder(model), batch=8, length=1024, gpu=NODE.gpu, options=options).trace
    assert run.step_ns == sum(kernel.duration_ns for kernel in built.kernels)


@pytest.mark.slow
def test_more_memory_never_makes_an_option_infeasible(answers: dict[int, Fit]) -> None:
    searched = [each.searched for each in candidates(answers[48].question.workload.options)]
    for less, more in zip(answers.values(), list(answers.values())[1:], strict=False):
        for small, large, parameter in zip(less.rows, more.rows, searched, strict=False):
            assert large.fits or not small.fits, small.candidate.label
            if small.fits and parameter in ("every", "count", "num_layers"):  # more memory spares as many
                assert run_of(large).step_ns <= run_of(small).step_ns
        if less.best is not None:
            assert more.best is not None
            assert run_of(more.best).step_ns <= run_of(less.best).step_ns / (1 - 0.005)
        for row in more:
            assert run_of(row).reserved >= run_of(row).peak >= run_of(row).persistent.total
    counts = [len(each.fitting) for each in answers.values()]
    assert counts == sorted(counts)
    assert 0 < counts[0] < counts[-1]


@pytest.mark.slow
def test_what_fits_at_a_length_fits_at_shorter_ones(model: Path) -> None:
    workload = workload_of(model, {})
    for candidate in candidates(workload.options):
        one = replace(candidate, searched="")  # the same value at all lengths
        questions = (Question(workload, NODE, 1, length, 70 * MIB) for length in (256, 512, 1024, 1536, 2048))
        fits = [question.row(one) for question in questions]
        verdicts = [row.fits for row in fits]
        assert verdicts == sorted(verdicts, reverse=True), candidate.label
        peaks = [run_of(row).peak for row in fits]
        assert peaks == sorted(peaks), candidate.label


def test_peaks_and_times_of_plain_training_are_those_of_the_trace_alone(model: Path) -> None:
    """Lifetimes and durations of the trace give peak, persistent part and time without a simulation."""
    question = Question(workload_of(model, {}), NODE, 1, 1024, 200 * MIB)
    row = question.row(candidates(question.workload.options)[0])
    trace = decoder_iteration(
        read_decoder(model), batch=1, length=1024, gpu=NODE.gpu, options=TrainingOptions.of(row.candidate.build)
    ).trace
    run, peak = run_of(row), trace_stats(trace).peak_recorded
    assert peak is not None
    assert run.peak == peak.bytes
    assert run.plain_ns == sum(kernel.duration_ns for kernel in trace.kernels)
    kept = (BlockKind.WEIGHT, BlockKind.WEIGHT_GRADIENT, BlockKind.OPTIMIZER_STATE)
    assert run.persistent.total == sum(block.bytes for block in trace.blocks if block.kind in kept)


@pytest.mark.slow
def test_the_policy_that_the_answer_prints_runs_as_printed(model: Path, answers: dict[int, Fit]) -> None:
    for budget, answer in answers.items():
        best = answer.best
        if best is None:
            continue
        ((_, text),) = [pair for pair in answer.facts() if pair[0] == "policy"]
        _, _, policy = text.partition(": ")
        trace = decoder_iteration(
            read_decoder(model), batch=1, length=1024, gpu=NODE.gpu, options=TrainingOptions.of(best.candidate.build)
        ).trace
        config = RunConfig(pool="caching", budget=budget * MIB, allocator=run_of(best).allocator or None)
        same = simgpu.simulate(trace, NODE, policy_from(yaml.safe_load(policy)), config)
        assert (same.iteration_ns, same.high_water) == (run_of(best).step_ns, run_of(best).reserved)
