"""Checks of Buddy Compression: their own pieces on cases by hand, and rules that are broken where the design is."""

from __future__ import annotations

import pytest

from simgpu.compression.buddy.targets import ProfiledAllocation
from simgpu.compression.codecs.entries import ENTRY_SIZES
from simgpu.papers.checks import buddy


def test_one_target_for_all_is_the_smallest_that_a_share_of_the_entries_exceeds() -> None:
    def allocation(name: str, small: int, large: int) -> ProfiledAllocation:
        counts = tuple({32: small, 128: large}.get(size, 0) for size in ENTRY_SIZES)
        return ProfiledAllocation(name, 128 * (small + large), (counts,))

    program = [allocation("a", 10, 0), allocation("b", 4, 6)]
    assert buddy.smallest_for_all(program, 0.3) == 32
    assert buddy.smallest_for_all(program, 0.29) == 128, "in no target but the largest do the others fit"
    assert buddy.smallest_for_all([allocation("a", 0, 9)], 0.3) == 128


def test_a_larger_share_may_overflow_and_more_does() -> None:
    few, many = buddy.one_target(0.3), buddy.one_target(0.7)
    assert few["ratio"] < many["ratio"]
    assert 0 < few["accesses"] < many["accesses"]
    assert few["accesses"] <= 0.3


@pytest.mark.slow
def test_optimistic_ratios_are_those_of_the_documented_table_and_of_the_fit() -> None:
    """The table of traces/README.md, and what the profile published was fitted to."""
    fitted = buddy.optimistic("published")
    ratios = {group: shown["eight sizes"] for group, shown in fitted["bars"]["groups"].items()}
    assert [round(ratios[name], 2) for name in buddy.SOLVERS] == [3.07, 1.35, 2.61, 1.10, 1.38]
    assert fitted["dl"] == pytest.approx(1.85, abs=0.005)
    assert buddy.optimistic(without=["lbm"])["hpc"] > fitted["hpc"]


def test_a_footprint_is_linear_where_what_grows_is_as_large_as_what_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    constant = {"AlexNet": 700, "BigLSTM": 300, "VGG16": 170}
    monkeypatch.setattr(
        buddy,
        "_peaks",
        lambda network, batches, *rest: {batch: constant.get(network, 10) + 10 * batch for batch in batches},
    )
    assert buddy.transition() == pytest.approx({"alexnet": 70, "others": 30})


def test_a_footprint_is_reported_at_the_batch_nearest_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        buddy, "_peaks", lambda network, batches, framework: {batch: batch * 10**8 for batch in batches}
    )
    sizes = buddy.footprints()
    # 2.71 GB lie between 1.6 (16 samples) and 3.2 (32), nearer to 3.2 as a ratio.
    assert sizes["biglstm"] == 3.2
    assert sizes["bars"]["groups"]["BigLSTM, batch 32"] == {"peak": 3.2}
    assert sizes["bars"]["published"]["BigLSTM, batch 32"] == {"peak": 2.71}
