"""`simgpu.fit` on several GPUs of a node: what they share costs time, and they can divide weights among them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import simgpu
from simgpu.experiments.fit.answer import answer
from simgpu.experiments.fit.candidates import candidates
from simgpu.experiments.fit.outcome import FitOutcome
from simgpu.experiments.fit.question import Question
from simgpu.experiments.fit.rows import FitRow, FitRun
from simgpu.experiments.fit.workloads import workload_of
from simgpu.hardware.sharing import one_of


def _run_of(row: FitRow) -> FitRun:
    assert row.run is not None
    return row.run


@pytest.mark.slow
def test_gpus_that_share_switches_cost_more_and_the_answer_says_how_much() -> None:
    node = simgpu.load_node("a100-x8", {"gpu.memory": "3 GiB"})
    single, shared = (simgpu.fit("resnet50", node, batch=64, gpus=gpus) for gpus in (1, 8))
    assert "sharing" in shared.headings
    assert "sharing" not in single.headings
    together = [row for row in shared.rows if row.candidate.shares == 1]
    assert len(together) < len(shared.rows)
    for alone, row in zip(single.rows, together, strict=True):
        if alone.run is not None and row.run is not None and alone.fits and row.fits:
            assert row.run.alone_ns == alone.run.step_ns
            assert row.run.step_ns >= alone.run.step_ns
            assert (row.run.sharing > 0) <= (row.run.link_bytes > 0)
    assert any(row.run is not None and row.run.sharing > 0.05 for row in shared.rows)
    assert "on each of 8 GPUs" in shared.answer


def test_gpus_that_exchange_data_can_divide_weights_where_no_other_option_fits_as_much(tmp_path: Path) -> None:
    values = {"model_type": "llama", "vocab_size": 1000, "max_position_embeddings": 4096, "num_attention_heads": 4}
    widths = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4}
    (tmp_path / "config.json").write_text(json.dumps(values | widths))
    whole = simgpu.load_node("h100-x8")
    workload = workload_of(tmp_path, {"optimizer": "adamw-fused"})
    question = Question(workload, one_of(whole, 8), 1, 128, 2**40, alone=whole, gpus=8)
    tried = {each.label: each for each in candidates(workload.options, question.sharing)}
    rows = {label: question.row(tried[label]) for label in ("as it is", "host optimizer", "FSDP2")}
    needs = {label: _run_of(row).reserved for label, row in rows.items()}
    assert needs["FSDP2"] < needs["as it is"]
    for budget, best in ((needs["as it is"], "as it is"), (needs["as it is"] - 1, "FSDP2")):
        within = replace(question, budget=budget)
        fit = FitOutcome(within, tuple(within.row(row.candidate) for row in rows.values()), question.info(), 0)
        assert fit.best is not None
        assert fit.best.candidate.label == best
        without_exchange = "gradients is not included: with DistributedDataParallel's buckets" in answer(fit)
        assert without_exchange == (best != "FSDP2")
    assert rows["FSDP2"].candidate.parameters == {"gpus": 8}
    assert _run_of(rows["FSDP2"]).persistent.total == -(-_run_of(rows["as it is"]).persistent.total // 8)
    alone = Question(workload, simgpu.load_node("h100"), 1, 128, 2**40)
    assert not any(each.shares > 1 for each in candidates(workload.options, alone.sharing))
