"""Results of Buddy Compression's profiler: the numbers of figures 3, 7, 8 and 9, and its plots."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simgpu
from simgpu.analysis.buddy_profile import BuddyProfile, profile_arrays, profile_snapshots
from simgpu.analysis.heatmap import heat_map
from simgpu.compression.buddy.snapshots import Seen, Snapshots, collect, take_snapshots
from simgpu.compression.buddy.targets import choose_targets, compression_ratio, mean_overflow
from simgpu.compression.codecs.entries import ENTRY_SIZES
from simgpu.errors import InputError


def entries(*runs: tuple[int, int]) -> Seen:
    """An allocation with these entries: (number, size) in memory order."""
    classes = [ENTRY_SIZES.index(size) for count, size in runs for _ in range(count)]
    return Seen(128 * len(classes), np.array(classes, np.uint8))


def program(*snapshots: dict[str, Seen]) -> Snapshots:
    return collect(
        "a program", [f"epoch {number}" for number in range(len(snapshots))], snapshots, about="made by hand"
    )


#: Two snapshots. `map` overflows at 2x in 10% and then 30% of its entries, `pad` is always zero, `noise` never small.
TRAINING = program(
    {"map": entries((90, 64), (10, 128)), "pad": entries((100, 0)), "noise": entries((100, 128))},
    {"map": entries((70, 64), (30, 128)), "pad": entries((100, 0)), "noise": entries((100, 128))},
)


@pytest.fixture(scope="module")
def profile() -> BuddyProfile:
    return profile_snapshots(TRAINING)


# --- the numbers --------------------------------------------------------------------------------------------


def test_the_profile_has_the_columns_of_figure_7(profile: BuddyProfile) -> None:
    # Sectors: map 180 + 40 and 140 + 120, so 240 in the mean; pad 0; noise 400: 1200 / 640 = 1.875, so 1.33x for all.
    assert set(profile.naive.targets) == {96}
    assert profile.naive.ratio == pytest.approx(4 / 3)
    assert profile.naive.overflow == pytest.approx((20 + 0 + 100) / 300)
    assert profile.per_allocation.targets == (64, 32, 128)
    assert profile.per_allocation.ratio == pytest.approx(300 * 128 / (100 * (64 + 32 + 128)))
    assert profile.per_allocation.overflow == pytest.approx(20 / 300)
    assert profile.final.targets == (64, 8, 128)
    assert profile.final.ratio == pytest.approx(300 * 128 / (100 * (64 + 8 + 128)))
    assert profile.final.overflow == profile.per_allocation.overflow
    assert profile.targets == {"map": 64, "pad": 8, "noise": 128}


def test_the_optimistic_ratio_is_that_of_figure_3(profile: BuddyProfile) -> None:
    assert profile.optimistic_ratio == pytest.approx(300 * 128 / (80 * 64 + 20 * 128 + 100 * 128))


def test_figure_8_shows_the_overflow_of_each_snapshot_at_fixed_targets(profile: BuddyProfile) -> None:
    assert [(moment.label, moment.overflow) for moment in profile.drift] == [("epoch 0", 10 / 300), ("epoch 1", 0.1)]
    (of_map, *_) = profile.allocations
    assert (of_map.overflow, of_map.least_overflow, of_map.most_overflow) == (0.2, 0.1, 0.3)


def test_figure_9_sweeps_the_threshold(profile: BuddyProfile) -> None:
    assert list(profile.sweep) == [0.1, 0.2, 0.3, 0.4]
    assert [outcome.targets[0] for outcome in profile.sweep.values()] == [128, 64, 64, 64]
    assert profile.sweep[0.3] == profile.final
    # The mean size of `map` is 76.8 bytes: 1.67x, so 1.33x, at which as much overflows as at 2x.
    assert profile.by_mean.targets == (96, 8, 128)


def test_a_custom_threshold_is_added_to_the_sweep() -> None:
    result = profile_snapshots(TRAINING, threshold=0.15)
    assert list(result.sweep) == [0.1, 0.15, 0.2, 0.3, 0.4]
    assert result.sweep[0.15] == result.final
    assert result.final.targets[0] == 128


def test_without_the_zero_case_the_final_design_uses_targets_per_allocation() -> None:
    result = profile_snapshots(TRAINING, mostly_zero=False)
    assert result.final == result.per_allocation
    assert 8 not in {target for outcome in result.sweep.values() for target in outcome.targets}


def test_an_allocation_counts_only_in_its_snapshots() -> None:
    result = profile_snapshots(
        program({"w": entries((100, 64))}, {"w": entries((100, 64)), "g": entries((60, 32), (40, 128))})
    )
    assert result.targets == {"w": 64, "g": 128}
    assert [moment.bytes for moment in result.drift] == [12_800, 25_600]
    assert result.snapshots.in_snapshot(0).keys() == {0}
    result = profile_snapshots(result.snapshots, threshold=0.4)
    assert [moment.overflow for moment in result.drift] == [0.0, 0.2]
    assert result.final.overflow == 0.2


@settings(deadline=None, max_examples=25)
@given(data=st.data(), threshold=st.integers(0, 40).map(lambda percent: percent / 100))
def test_the_numbers_of_a_profile_are_consistent(data: st.DataObject, threshold: float) -> None:
    count = st.integers(1, 20)
    run = st.lists(st.tuples(count, st.sampled_from(ENTRY_SIZES)), min_size=2, max_size=2)
    lengths = data.draw(st.lists(count, min_size=1, max_size=4))
    snapshots = []
    for _ in range(data.draw(st.integers(1, 3))):
        drawn = [(length, data.draw(run)) for length in lengths]
        snapshots.append(
            {f"a{at}": entries((length, one[1]), (3, two[1])) for at, (length, (one, two)) in enumerate(drawn)}
        )
    result = profile_snapshots(program(*snapshots), threshold=threshold)
    known = result.snapshots.allocations
    assert result.final.targets == choose_targets(known, threshold=threshold)
    for outcome in (*result.designs.values(), *result.sweep.values(), result.by_mean):
        assert outcome.ratio == compression_ratio(known, outcome.targets)
        assert outcome.overflow == mean_overflow(known, outcome.targets)
    assert result.final.ratio >= result.per_allocation.ratio
    total = sum(each.entries for each in known)
    assert np.mean([moment.overflow for moment in result.drift]) == pytest.approx(result.final.overflow)
    by_allocation = sum(each.overflow * known[at].entries for at, each in enumerate(result.allocations)) / total
    assert by_allocation == pytest.approx(result.final.overflow)


def test_arrays_are_profiled_without_files() -> None:
    noise = np.random.default_rng(0).integers(0, 2**63, 4096)
    message: list[str] = []
    result = simgpu.profile_arrays({"noise": noise, "zeros": np.zeros(4096)}, progress=message.append)
    assert result.targets == {"noise": 128, "zeros": 8}
    assert message == ["snapshot 1: noise", "snapshot 1: zeros"]


@pytest.mark.parametrize("arguments", [{"threshold": 30}, {"largest_ratio": 0.5}])
def test_wrong_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"argument {next(iter(arguments))}"):
        profile_arrays({"zeros": np.zeros(4096)}, **arguments)


# --- how it shows -------------------------------------------------------------------------------------------


def test_a_profile_prints_as_a_table(profile: BuddyProfile) -> None:
    assert repr(profile).splitlines() == [
        "a program: 3 allocations, 37.5 KiB, 2 snapshots; made by hand",
        "design          ratio  overflow",
        "naive           1.33x  40.00%",
        "per allocation  1.71x  6.67%",
        "final           1.92x  6.67%",
    ]


def test_the_notebook_output_includes_the_largest_allocations() -> None:
    many = {f"a{number:02}": entries((number + 1, 64)) for number in range(30)}
    html = profile_snapshots(program(many))._repr_html_()
    assert "the 20 largest allocations, final design" in html
    assert "a29" in html
    assert "a09" not in html


def test_frames_and_plain_data_have_all_numbers(profile: BuddyProfile) -> None:
    assert profile.frame().loc["pad", ["bytes", "target", "target_ratio"]].tolist() == [12_800, 8, 16]
    assert profile.sweep_frame().loc[0.3].tolist() == [profile.final.ratio, profile.final.overflow]
    assert profile.drift_frame()["overflow"].tolist() == [10 / 300, 0.1]
    plain = json.loads(json.dumps(profile.to_dict(), allow_nan=False))
    assert plain["designs"]["final"] == {"ratio": 1.92, "overflow": 20 / 300}
    assert plain["allocations"][1] == {
        "name": "pad",
        "bytes": 12_800,
        "optimistic_ratio": None,
        "target": 8,
        "overflow": 0.0,
        "least_overflow": 0.0,
        "most_overflow": 0.0,
    }


# --- pictures -----------------------------------------------------------------------------------------------


def test_the_heat_map_stacks_pages_in_order() -> None:
    result = heat_map(
        program({"two": entries((64, 8), (64, 128)), "part": entries((16, 32)), "next": entries((64, 0))})
    )
    assert result is not None
    assert [(band.allocation, band.first, band.rows) for band in result.bands] == [
        ("two", 0.0, 2.0),
        ("part", 2.0, 0.25),
        ("next", 3.0, 1.0),
    ]
    assert result.pages_per_row == 1
    assert result.rows[:2].tolist() == [[8.0] * 64, [128.0] * 64]
    assert result.rows[2, :16].tolist() == [32.0] * 16
    assert np.isnan(result.rows[2, 16:]).all()
    assert result.rows[3].tolist() == [0.0] * 64


def test_small_allocations_share_a_page() -> None:
    result = heat_map(program({name: entries((1, 64)) for name in "abcdefghijklmnopq"}))
    assert result is not None
    assert [band.first * 64 for band in result.bands] == [*range(0, 64, 4), 64]


def test_the_heat_map_is_a_mean_over_snapshots_and_pages() -> None:
    result = heat_map(program({"a": entries((64 * 800, 0))}, {"a": entries((64 * 400, 64), (64 * 400, 128))}))
    assert result is not None
    assert (result.rows.shape, result.pages_per_row) == ((400, 64), 2)
    assert result.rows[:200].tolist() == [[32.0] * 64] * 200
    assert result.rows[200:].tolist() == [[64.0] * 64] * 200
    frame = result.frame()
    assert frame.index.tolist() == [2 * row for row in range(400)]
    assert frame["entry_63"].tolist() == [32.0] * 200 + [64.0] * 200


@settings(deadline=None, max_examples=30)
@given(sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=30))
def test_the_heat_map_contains_every_entry(sizes: list[int]) -> None:
    result = heat_map(program({f"a{at}": entries((size, 96)) for at, size in enumerate(sizes)}))
    assert result is not None
    assert len(result.rows) <= 400
    assert np.nanmin(result.rows) == np.nanmax(result.rows) == 96
    assert sum(band.rows for band in result.bands) * 64 * result.pages_per_row == pytest.approx(sum(sizes))
    ends = [band.first + band.rows for band in result.bands]
    assert all(end <= band.first + 1e-9 for end, band in zip(ends, result.bands[1:], strict=False))


def test_figures_have_titles(profile: BuddyProfile) -> None:
    labels = [text.get_text() for text in profile.plot("heatmap").axes[0].get_yticklabels()]
    assert labels == ["map  2x", "pad  16x", "noise  1x"]
    bars = [text.get_text() for text in profile.plot("threshold").axes[1].texts]
    assert bars == ["0.00%", "6.67%", "6.67%", "6.67%"]
    line = profile.plot("drift").axes[0].lines[0]
    assert np.asarray(line.get_ydata()).tolist() == [10 / 300, 0.1]
    assert all(profile.plot(picture).get_suptitle() == profile.caption for picture in ("heatmap", "threshold", "drift"))


def test_a_long_title_is_broken_into_lines() -> None:
    about = " ".join(["where it comes from"] * 10)
    result = profile_snapshots(collect("a program", ["now"], [{"a": entries((10, 0))}], about))
    for picture in ("heatmap", "threshold", "drift"):
        title = result.plot(picture).get_suptitle()
        assert " ".join(title.split()) == result.caption
        assert max(map(len, title.splitlines())) <= 96


def test_figures_that_cannot_be_drawn_are_refused(profile: BuddyProfile) -> None:
    unknown: Any = "heat"
    with pytest.raises(InputError, match="unknown picture 'heat'; did you mean 'heatmap'"):
        profile.plot(unknown)
    flat = take_snapshots({"a": np.zeros(10)})
    (only,) = flat.observed
    bare = type(only)(only.allocation, only.at, None)
    histograms = profile_snapshots(Snapshots("histograms", flat.labels, (bare,)))
    assert histograms.heat_map() is None
    with pytest.raises(InputError, match="only histograms are known"):
        histograms.plot("heatmap")


@pytest.mark.slow
def test_a_program_of_zeros_can_be_drawn() -> None:
    result = profile_snapshots(program({"a": entries((10, 0))}))
    assert result.to_dict()["optimistic_ratio"] is None
    for picture in ("heatmap", "threshold", "drift"):
        assert result.plot(picture)._repr_png_().startswith(b"\x89PNG")
