"""The rule for slowdowns of several GPUs, and what it selects of the rows that ship."""

from __future__ import annotations

from dataclasses import replace

from simgpu.validation.public.rows import PublishedRow, published_rows
from simgpu.validation.public.several import OURS, SeveralReason, slowdowns_of_several

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


def test_comparable_slowdowns_are_those_of_the_first_rule() -> None:
    """What simgpu models grows; which slowdowns are comparable stays."""
    found = slowdowns_of_several(ROWS.values())
    comparable = {name for name, (_, against) in found.items() if set(against) <= OURS}
    assert comparable == {"t-002", "t-003", "t-009", "t-010", "t-191", "t-372", "t-374"}


def test_a_source_that_says_less_is_not_compared() -> None:
    """What a row loses, both lose; the reason names it."""
    lost = {
        SeveralReason.NO_TIME: {"time": ""},
        SeveralReason.NOT_STATED: {"parallelism": ""},
        SeveralReason.NOT_DATA: {"parallelism": "FSDP 4, TP 2"},
        SeveralReason.NO_SIZES: {"config": None},
        SeveralReason.NO_SHAPE: {"tokens": None},
        SeveralReason.NO_GPU: {"node": None},
    }
    for reason, fields in lost.items():
        assert _against(*(replace(row, **fields) for row in BOTH)) == [reason], reason


def test_splits_are_read_in_every_spelling_and_sizes_of_one_split_nothing() -> None:
    for text in ("tp4 pp1 dp2", "FSDP4 + TP2", "FSDP + EP", "tp1pp2", "dp4 ep4 pp2 vpp2", "CP 8"):
        assert _against(*(replace(row, parallelism=text) for row in BOTH)) == [SeveralReason.NOT_DATA], text
    for text in ("FSDP 8, EP 1, CP 1", "DeepSpeed ZeRO-3 + CPU offload", "DDP, all persistent", "tp1 pp1 dp8"):
        assert SeveralReason.NOT_DATA not in _against(*(replace(row, parallelism=text) for row in BOTH)), text


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
