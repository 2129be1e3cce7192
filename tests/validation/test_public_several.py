"""The rule for slowdowns of several GPUs, and what it selects of the rows that ship."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from simgpu.cli.validate_public import public
from simgpu.validation.public.rows import PublishedRow, published_rows
from simgpu.validation.public.selection import DIVIDED
from simgpu.validation.public.several import OURS, SeveralReason, slowdowns_of_several
from simgpu.validation.public.several_times import (
    compared_slowdowns,
    predict_one_gpu,
    rows_of_several,
    stored_times_of_several,
)
from simgpu.validation.public.times import PredictedTime
from tests.validation.test_public_predictions import installed

ROWS = {row.id: row for row in published_rows()}
#: A baseline and its option, of eight GPUs, which a prediction can compare.
BOTH = (ROWS["t-001"], ROWS["t-002"])


def _against(*rows: PublishedRow) -> list[SeveralReason]:
    return slowdowns_of_several(rows)[rows[-1].id][1]


def test_every_row_of_several_gpus_is_a_baseline_or_has_one_or_a_reason() -> None:
    found = slowdowns_of_several(ROWS.values())
    baselines = {baseline.id for baseline, _ in found.values() if baseline}
    assert found.keys() | baselines == {row.id for row in ROWS.values() if row.gpus != 1}
    assert not found.keys() & baselines and all(baseline or against for baseline, against in found.values())


def test_a_slowdown_has_either_reasons_of_its_source_or_of_simgpu() -> None:
    for _, against in slowdowns_of_several(ROWS.values()).values():
        assert set(against) <= OURS or not OURS & set(against)


def test_comparable_slowdowns_are_those_of_the_first_rule_and_of_projects_whose_layouts_are_followed() -> None:
    """What simgpu models grows; which slowdowns of a project are comparable stays."""
    found = slowdowns_of_several(ROWS.values())
    comparable = {name for name, (_, against) in found.items() if set(against) <= OURS}
    divided = {name for name in comparable if ROWS[name].project in DIVIDED}
    of_data = {"t-002", "t-003", "t-009", "t-010", "t-191", "t-372", "t-374"}
    assert comparable - divided == of_data | {"t-012", "t-022", "t-026", "t-030", "t-032"}
    with_sizes = {row.id for row in ROWS.values() if row.project in DIVIDED and row.config is not None}
    assert divided == with_sizes & found.keys() - {name for name, (_, why) in found.items() if _alone(why)}


def _alone(against: list[SeveralReason]) -> bool:
    return against == [SeveralReason.ALONE]


def test_a_source_that_says_less_is_not_compared() -> None:
    """What a row loses, both lose; the reason names it."""
    lost: dict[SeveralReason, dict[str, Any]] = {
        SeveralReason.NO_TIME: {"time": ""},
        SeveralReason.NOT_STATED: {"parallelism": ""},
        SeveralReason.NOT_DATA: {"parallelism": "FSDP 4, PP 2"},
        SeveralReason.NO_SIZES: {"config": None},
        SeveralReason.NO_SHAPE: {"tokens": None},
        SeveralReason.NO_GPU: {"node": None},
    }
    for reason, fields in lost.items():
        assert _against(*(replace(row, **fields) for row in BOTH)) == [reason], reason


def test_splits_are_read_in_every_spelling_and_sizes_of_one_split_nothing() -> None:
    for text in ("tp4 pp1 dp2", "FSDP4 + TP2", "FSDP + EP", "tp1pp2", "dp4 ep4 pp2 vpp2", "CP 8"):
        both = (replace(row, parallelism=text, source="mosaicml/llm-foundry") for row in BOTH)
        assert _against(*both) == [SeveralReason.NOT_DATA], text
    for text in ("FSDP 8, EP 1, CP 1", "DeepSpeed ZeRO-3 + CPU offload", "DDP, all persistent", "tp1 pp1 dp8"):
        assert SeveralReason.NOT_DATA not in _against(*(replace(row, parallelism=text) for row in BOTH)), text


def test_tensors_alone_may_be_split_where_a_project_is_named_for_it() -> None:
    for text, compared in (("FSDP 32, TP 8", True), ("FSDP 8, TP 8, PP 8", False), ("FSDP4 + TP2 + EP2", False)):
        against = _against(*(replace(row, parallelism=text) for row in BOTH))
        assert (SeveralReason.NOT_DATA not in against) is compared, text


def test_an_option_that_changes_communication_or_parallelism_is_not_compared() -> None:
    plain, option = BOTH
    sharded = replace(option, uses=(*option.uses, "sharded optimizer"))
    assert _against(plain, sharded) == [SeveralReason.COMMUNICATION]
    assert _against(plain, replace(option, parallelism="DDP")) == [SeveralReason.DIFFERS]


def test_the_rule_for_several_gpus_looks_at_no_measured_value() -> None:
    other = [replace(row, time="7 tok/s" if row.time[:1].isdigit() else row.time) for row in ROWS.values()]
    assert slowdowns_of_several(other).keys() == slowdowns_of_several(ROWS.values()).keys()
    assert [each for _, each in slowdowns_of_several(other).values()] == [
        each for _, each in slowdowns_of_several(ROWS.values()).values()
    ]


def test_slowdowns_of_several_gpus_are_ratios_of_one_gpu_to_the_baseline() -> None:
    """With published times as predictions, every error is zero; with a baseline twice as long, its row's is -50%."""
    exact = {row.id: PredictedTime(row.sample_ns, row.sample_ns, 1) for row in rows_of_several() if row.sample_ns}
    assert {each.error for each in compared_slowdowns(exact)} == {0}
    doubled = exact | {"t-001": PredictedTime(2 * exact["t-001"].step_ns, 1, 1)}
    errors = {each.row.id: each.error for each in compared_slowdowns(doubled)}
    assert abs(errors.pop("t-002") + 0.5) < 1e-9 and abs(errors.pop("t-003") + 0.5) < 1e-9
    assert set(errors.values()) == {0}


def test_micro_batches_of_a_step_count_as_samples() -> None:
    assert ROWS["t-490"].sample_ns == round(765.6e6 / 8)


def test_every_covered_slowdown_is_predicted_within_ten_percent_and_no_other() -> None:
    assert stored_times_of_several().keys() == {row.id for row in rows_of_several()}
    assert all(abs(each.error) <= 0.1 for each in compared_slowdowns(stored_times_of_several()))


def test_a_step_of_llama_takes_longer_than_its_products_at_the_peak_rate() -> None:
    """By hand: 6 operations of each weight and token, those of wk, wo and w3 done again, and half of the scores."""
    width, hidden, tokens, layers = 4096, 14336, 2 * 8192, 32
    layer = 2 * width * width + 2 * width * 1024 + 3 * width * hidden
    again = width * width + width * 1024 + width * hidden
    scores = 2 * 2 * 8192 * width * tokens // 2  # scores and their product with values
    flops = 6 * tokens * (layers * layer + 128256 * width) + layers * (2 * tokens * again + 3.5 * scores)
    least = flops / 989.4e12 * 1e9
    stored = stored_times_of_several()
    assert 1.2 < stored["t-002"].kernels_ns / least < stored["t-001"].kernels_ns / least < 2.5


def test_the_command_prints_slowdowns_of_several_gpus_and_counts_the_others() -> None:
    document = json.loads(CliRunner().invoke(public, ["--json"]).output)
    of = document["coverage_of_several"]
    assert sum(of["reasons"].values()) + of["covered"] == of["rows"] == len(document["reasons_of_several"])
    assert of["rows"] + of["baselines"] == sum(row.gpus != 1 for row in ROWS.values())
    assert [each["id"] for each in document["slowdowns_of_several"]][:3] == ["t-002", "t-003", "t-009"]
    assert len(document["slowdowns_of_several"]) == of["covered"]
    text = CliRunner().invoke(public, []).output
    assert f"slowdown of several GPUs: {of['covered']} of {of['comparable']} comparable rows are covered" in text


@pytest.mark.parametrize("name", ["t-482", "t-511"])
def test_a_job_of_megatron_comes_out_again(name: str) -> None:
    assert predict_one_gpu(ROWS[name]) == stored_times_of_several()[name]


@pytest.mark.slow
@pytest.mark.skipif(not installed("torch", "2.13"), reason="predictions were made with PyTorch 2.13")
def test_one_gpu_of_several_comes_out_again() -> None:
    for name in ("t-001", "t-002", "t-191", "t-374", *(("t-003",) if installed("torchao", "0.14") else ())):
        again, stored = predict_one_gpu(ROWS[name]), stored_times_of_several()[name]
        assert again.step_ns == pytest.approx(stored.step_ns, rel=0.001)


@pytest.mark.slow
@pytest.mark.skipif(not installed("torch"), reason="needs PyTorch")
def test_the_model_of_torchtitan_has_the_published_number_of_weights() -> None:
    """8,030,261,248, as Llama 3.1 8B's model card and index of weights (16,060,522,496 bytes in bfloat16) have it."""
    import torch

    from simgpu.validation.public.titan_rows import SIZES, TitanModel

    with torch.device("meta"):
        model = TitanModel(SIZES["llama-3.1-8b"], 8192)
    assert sum(each.numel() for each in model.parameters()) == 8_030_261_248


@pytest.mark.skipif(not installed("torch"), reason="needs PyTorch")
def test_mpt_has_the_published_number_of_weights() -> None:
    """1,312,804,864 with 512 positions, as the table of its benchmark has it."""
    import torch

    from simgpu.validation.public.mpt_rows import MptModel

    with torch.device("meta"):
        model = MptModel(512)
    assert sum(each.numel() for each in model.parameters()) == 1_312_804_864
