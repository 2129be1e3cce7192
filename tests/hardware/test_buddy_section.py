"""The compressed-memory section of a node file: its values, and every mistake reported at its place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import BuddyMode, BuddySpec, Duplex, Granularity, LinkSpec, MetadataCacheSpec

GOOD = """\
schema: simgpu.node/1
name: bench
gpu:
  name: a GPU
  memory: 8 GiB
  dram_bandwidth: 900 GB/s
  buddy:
    carve_out: 3
    metadata_cache: {size: 4 KiB, slices: 32, ways: 4, line: 32 B, entries: 64}
    decompression: 13 ns
    memory_latency: 288 ns
    in_flight: 448 KiB
link:
  kind: PCIe
  d2h_bandwidth: 12 GB/s
  h2d_bandwidth: 11 GB/s
"""
PAPERS = BuddySpec(None, 3, MetadataCacheSpec(4096, 32, 4, 32, 64), 13, 288, 448 * 1024)


def loaded(folder: Path, text: str) -> BuddySpec | None:
    path = folder / "node.yaml"
    path.write_text(text, encoding="utf-8")
    return load_node(path).gpu.buddy


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        loaded(folder, text)
    assert all(problem.remedy or ":" in problem.what for problem in caught.value.problems), "each with its remedy"
    return [f"{problem.place}: {problem.what}" for problem in caught.value.problems]


def changed(*changes: tuple[str, str]) -> str:
    text = GOOD
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def test_the_defaults_match_the_paper(tmp_path: Path):
    """Threshold 30%, 16x for mostly zero allocations, a target per allocation, the GPU's own link."""
    result = loaded(tmp_path, GOOD)
    assert result == PAPERS
    assert (PAPERS.threshold, PAPERS.mostly_zero, PAPERS.granularity) == (0.3, True, Granularity.ALLOCATION)
    assert (PAPERS.overlap, PAPERS.mode) == (0, BuddyMode.CAPACITY)


def test_every_key_is_loaded(tmp_path: Path):
    more = """\
    mode: bandwidth-only
    granularity: program
    threshold: 40%
    mostly_zero: false
    overlap: 25%
    link: {kind: bus, d2h_bandwidth: 3 GB/s, h2d_bandwidth: 4 GB/s, latency: 2 us, duplex: half}
"""
    expected = replace(
        PAPERS,
        mode=BuddyMode.BANDWIDTH_ONLY,
        granularity=Granularity.PROGRAM,
        threshold=0.4,
        mostly_zero=False,
        overlap=0.25,
        link=LinkSpec("bus", 3 * 10**9, 4 * 10**9, 2000, Duplex.HALF),
    )
    assert loaded(tmp_path, changed(("link:\n", f"{more}link:\n"))) == expected


def test_a_node_without_the_section_has_no_buddy_memory(tmp_path: Path):
    start, end = GOOD.index("  buddy:"), GOOD.index("link:")
    assert loaded(tmp_path, GOOD[:start] + GOOD[end:]) is None


def test_all_mistakes_are_reported_together_with_their_places(tmp_path: Path):
    text = changed(
        (
            "carve_out: 3",
            "carve_out: 0\n    threshold: 130%\n    overlap: -10%\n    mode: fast\n    granularity: block",
        ),
        ("slices: 32", "slices: 0"),
        ("decompression: 13 ns", "decompression: 13"),
        ("in_flight", "inflight"),
    )
    result = problems(tmp_path, text)
    places = [each.split(":")[0] for each in result]
    for place in (
        "line 8, gpu.buddy.carve_out",
        "line 9, gpu.buddy.threshold",
        "line 10, gpu.buddy.overlap",
        "line 11, gpu.buddy.mode",
        "line 12, gpu.buddy.granularity",
        "line 13, gpu.buddy.metadata_cache.slices",
        "line 14, gpu.buddy.decompression",
        "line 16, gpu.buddy.inflight",
        "line 7, gpu.buddy.in_flight",
    ):
        assert place in places
    assert len(result) == 9


@pytest.mark.parametrize("size", ["100 B", "4000 B", "64 B"])
def test_metadata_cache_size_is_a_multiple_of_its_sets(tmp_path: Path, size: str):
    (result,) = problems(tmp_path, changed(("size: 4 KiB", f"size: {size}")))
    assert result.startswith("line 9, gpu.buddy.metadata_cache: size is not a multiple of 128 B")


def test_buddy_memory_needs_the_device_memory_bandwidth(tmp_path: Path):
    (result,) = problems(tmp_path, changed(("  dram_bandwidth: 900 GB/s\n", "")))
    assert result == "line 3, gpu: buddy needs dram_bandwidth: compression reduces the traffic to DRAM"


def test_the_shipped_buddy_gpu_matches_the_paper():
    """Table 2 and section 3.5; 11 cycles at 875 MHz."""
    node = load_node("buddy-gpu")
    buddy = node.gpu.buddy
    assert buddy is not None
    assert (buddy.cache, buddy.carve_out, buddy.threshold, buddy.mostly_zero) == (PAPERS.cache, 3, 0.3, True)
    assert 11 / 0.875 <= buddy.decompression_ns < 11 / 0.875 + 1
    assert node.gpu.dram_bandwidth == 900 * 10**9
    assert (node.link.d2h_bandwidth, node.link.h2d_bandwidth, node.link.duplex) == (150 * 10**9,) * 2 + (Duplex.FULL,)
