"""Checks of Buddy Compression: their own pieces on cases by hand, and rules that are broken where the design is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simgpu.compression.buddy.metadata_cache import CacheCounts, MetadataCache
from simgpu.compression.buddy.targets import ProfiledAllocation
from simgpu.compression.codecs.entries import ENTRY_SIZES
from simgpu.hardware.spec import BuddySpec, NodeSpec
from simgpu.papers.checks import buddy_programs, buddy_rules
from simgpu.papers.checks.buddy import CHECKS

RULES = ("entry", "metadata", "carveout", "threshold", "latency")


def changed(monkeypatch: pytest.MonkeyPatch, **values: object) -> None:
    """The paper's GPU with another compressed memory."""
    node, buddy = buddy_rules._node()
    other = replace(buddy, **values)  # type: ignore[arg-type]  # of several types
    found: tuple[NodeSpec, BuddySpec] = (replace(node, gpu=replace(node.gpu, buddy=other)), other)
    monkeypatch.setattr(buddy_rules, "_node", lambda: found)


def held(found: dict[str, object]) -> dict[str, bool]:
    """Its rules by name, and whether each holds."""
    return {name: value["holds"] for name, value in found.items() if isinstance(value, dict) and "holds" in value}


@pytest.mark.parametrize("name", RULES)
def test_the_rules_of_the_design_hold(name: str) -> None:
    rules = held(dict(CHECKS[name]()))
    assert rules
    assert all(rules.values())


def test_another_carve_out_breaks_its_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    changed(monkeypatch, carve_out=5)
    assert held(buddy_rules.carveout()) == {"size": False, "cap": True, "most": True}
    assert not held(buddy_rules.metadata())["page_table"]


def test_targets_without_a_cap_break_it(monkeypatch: pytest.MonkeyPatch) -> None:
    uncapped = lambda program: tuple(8 for _ in program)  # noqa: E731  # the rule calls it by that name
    monkeypatch.setattr(buddy_rules, "choose_targets", uncapped)
    assert held(buddy_rules.carveout()) == {"size": True, "cap": False, "most": False}


def test_another_threshold_is_found_and_breaks_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    changed(monkeypatch, threshold=0.2)
    assert not held(buddy_rules.threshold())["kept"]
    monkeypatch.setattr(buddy_rules, "_target_of_overflow", lambda over: 32 if over <= 250 else 128)
    found = buddy_rules.threshold()
    assert found["default"] == 0.25


def test_other_caches_break_the_rules_of_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    _, buddy = buddy_rules._node()
    assert buddy_rules._lines(buddy)
    assert buddy_rules._ways(buddy)
    assert buddy_rules._size(buddy)
    assert not buddy_rules._lines(replace(buddy, cache=replace(buddy.cache, entries=32)))
    assert not buddy_rules._ways(replace(buddy, cache=replace(buddy.cache, ways=2)))
    assert not buddy_rules._ways(replace(buddy, cache=replace(buddy.cache, ways=8)))
    assert not buddy_rules._size(replace(buddy, cache=replace(buddy.cache, size=2048)))
    assert not buddy_rules._size(replace(buddy, cache=replace(buddy.cache, size=8192)))
    monkeypatch.setattr(MetadataCache, "access", lambda self, lines, writes: CacheCounts(0, lines.size, 0))
    assert not buddy_rules._size(buddy)


@pytest.mark.parametrize(("decompression", "cycles"), [(0, 0), (12, 10), (13, 11), (14, 12)])
def test_cycles_are_those_that_a_read_waits_longer(
    monkeypatch: pytest.MonkeyPatch, decompression: int, cycles: int
) -> None:
    """At 875 MHz eleven cycles are 12.6 ns, and twelve 13.7."""
    changed(monkeypatch, decompression_ns=decompression)
    assert buddy_rules.latency()["cycles"] == cycles


def test_bytes_of_the_wrong_memory_break_the_rule_of_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    right = buddy_rules.moved_by
    monkeypatch.setattr(buddy_rules, "moved_by", lambda *given: right(*given)._replace(read=0))
    assert not held(buddy_rules.entry())["sectors"]


def test_an_entry_in_too_small_a_size_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = buddy_rules.size_classes
    monkeypatch.setattr(buddy_rules, "size_classes", lambda words: right(words).clip(max=6))
    assert not held(buddy_rules.entry())["codes"]


@pytest.mark.parametrize(
    ("words", "bits"),
    [
        ([0] * 32, 3 + 7),
        ([1] * 32, 7 + 7),
        ([-8] * 32, 7 + 7),
        ([-9] * 32, 11 + 7),
        ([2**15] * 32, 33 + 7),
        # A single step: of the plane of 1 a single one, and 32 planes that are zero.
        ([0] * 31 + [1], 3 + 7 + 10),
        # Every step is 1: the lowest plane is all ones.
        (list(range(32)), 3 + 7 + 5),
    ],
)
def test_lengths_of_codes_by_hand(words: list[int], bits: int) -> None:
    assert buddy_rules.code_bits(words) == bits


def test_the_least_target_counts_entries_one_by_one() -> None:
    def allocation(*sizes: int) -> ProfiledAllocation:
        return ProfiledAllocation("a", 128 * len(sizes), (tuple(sizes.count(size) for size in ENTRY_SIZES),))

    assert buddy_rules._least_target(allocation(*[32] * 7, *[128] * 3)) == 32
    assert buddy_rules._least_target(allocation(*[32] * 6, 64, *[128] * 3)) == 64
    assert buddy_rules._least_target(allocation(*[0] * 6, *[128] * 4)) == 128


def test_one_target_for_all_is_the_least_that_a_share_of_the_entries_exceeds() -> None:
    def allocation(name: str, small: int, large: int) -> ProfiledAllocation:
        counts = tuple({32: small, 128: large}.get(size, 0) for size in ENTRY_SIZES)
        return ProfiledAllocation(name, 128 * (small + large), (counts,))

    program = [allocation("a", 10, 0), allocation("b", 4, 6)]
    assert buddy_programs.least_for_all(program, 0.3) == 32
    assert buddy_programs.least_for_all(program, 0.29) == 128, "in no target but the largest do the others fit"
    assert buddy_programs.least_for_all([allocation("a", 0, 9)], 0.3) == 128


def test_more_entries_may_overflow_where_more_do() -> None:
    few, many = buddy_programs.one_target(0.3), buddy_programs.one_target(0.7)
    assert few["ratio"] < many["ratio"]
    assert 0 < few["accesses"] < many["accesses"]
    assert few["accesses"] <= 0.3


@pytest.mark.slow
def test_optimistic_ratios_are_those_told_of_the_solvers_and_of_the_fit() -> None:
    """The table of traces/README.md, and what the profile published was fitted to."""
    fitted = buddy_programs.optimistic("published")
    told = {group: shown["eight sizes"] for group, shown in fitted["bars"]["groups"].items()}
    assert [round(told[name], 2) for name in buddy_programs.SOLVERS] == [3.07, 1.35, 2.61, 1.10, 1.38]
    assert fitted["dl"] == pytest.approx(1.85, abs=0.005)
    assert buddy_programs.optimistic(without=["lbm"])["hpc"] > fitted["hpc"]


def test_a_footprint_is_linear_where_what_grows_is_as_large_as_what_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    constant = {"AlexNet": 700, "BigLSTM": 300, "VGG16": 170}
    monkeypatch.setattr(
        buddy_programs,
        "_peaks",
        lambda network, batches, *rest: {batch: constant.get(network, 10) + 10 * batch for batch in batches},
    )
    assert buddy_programs.transition() == pytest.approx({"alexnet": 70, "others": 30})


def test_a_footprint_is_told_at_the_batch_nearest_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        buddy_programs, "_peaks", lambda network, batches, framework: {batch: batch * 10**8 for batch in batches}
    )
    found = buddy_programs.footprints()
    # 2.71 GB lie between 1.6 (16 samples) and 3.2 (32), nearer to 3.2 as a ratio.
    assert found["biglstm"] == 3.2
    assert found["bars"]["groups"]["BigLSTM, batch 32"] == {"peak": 3.2}
    assert found["bars"]["published"]["BigLSTM, batch 32"] == {"peak": 2.71}
