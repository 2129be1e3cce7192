"""The rules of cDMA (Rhu et al., HPCA 2018), against derivations of the paper's text that share no code with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from simgpu.compression.codecs.frame import HEADER_BYTES
from simgpu.compression.codecs.registry import make_codec
from simgpu.hardware.dma_engine import CdmaSpec
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import NodeSpec
from simgpu.papers.checks.cdma_traces import GPUS, study
from simgpu.simulation.run import simulate
from simgpu.timeline.model import SpanKind
from simgpu.trace.chain import chain
from simgpu.trace.model import BlockKind, CompressedSize
from tests.papers.rules import fails

GIGA = 10**9
#: Table II.
BATCHES = {"AlexNet": 256, "OverFeat": 256, "NiN": 128, "VGG": 128, "SqueezeNet": 512, "GoogLeNet": 256}
#: Words of a window, of a sector, and of a line of the cache, 4 bytes each (sections V-A and V-B).
WINDOW, SECTOR, LINE = 32, 8, 32
#: The shortest handling of a page fault that is published (Zheng et al., HPCA 2016: 20 to 50 us), and a page.
FAULT_NS, PAGE = 20_000, 4096


# --- the format ---------------------------------------------------------------------------------------------


@pytest.mark.rule
@pytest.mark.parametrize("zeros", [0.0, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("size", [1, 31, 32, 33, 4096, 5000])
def test_zvc_is_the_format_of_figure_8(size: int, zeros: float) -> None:
    array = _sparse(np.random.default_rng(size), size, zeros)
    assert payload(array) == figure_8(array)


@pytest.mark.rule
def test_zvc_makes_zeros_alone_32_times_smaller() -> None:
    empty = _sparse(np.random.default_rng(0), 4096, 1.0)
    assert Fraction(empty.nbytes, len(payload(empty))) == 32


@pytest.mark.rule
def test_zvc_makes_values_without_zeros_a_32nd_larger() -> None:
    full = _sparse(np.random.default_rng(0), 4096, 0.0)
    assert Fraction(len(payload(full)), full.nbytes) - 1 == Fraction(1, 32)


def figure_8(values: Sequence[float] | NDArray[np.float32]) -> bytes:
    """ZVC by section V-A: of each 32 values a mask, a bit each, 1 where it is not zero; then those that are not."""
    stream = bytearray()
    words = np.asarray(values, np.float32).view(np.uint32).tolist()
    for begin in range(0, len(words), WINDOW):
        window = words[begin : begin + WINDOW]
        mask = sum(1 << place for place, word in enumerate(window) if word)
        for word in (mask, *filter(None, window)):
            stream += word.to_bytes(4, "little")
    return bytes(stream)


def payload(array: NDArray[np.float32]) -> bytes:
    return make_codec("zvc").encode(array)[HEADER_BYTES:].tobytes()


def _sparse(random: np.random.Generator, size: int, zeros: float) -> NDArray[np.float32]:
    values = random.uniform(1.0, 2.0, size).astype(np.float32)
    values[random.random(size) < zeros] = 0.0
    return values


@dataclass
class Compressor:
    """Figure 10(a), a cycle at a time: a sector's mask and prefix sum, then its shift, then its place behind the rest.

    Three registers, a sector in each; `packed` and `mask` are what has come out.
    """

    compared: tuple[list[int], list[int]] | None = None
    shifted: tuple[list[int], list[int]] | None = None
    packed: list[int] | None = None
    mask: int = 0
    sectors: int = 0

    def clock(self, sector: Sequence[int] | None) -> None:
        """One cycle, in which a sector of eight words may enter."""
        if self.shifted is not None:
            nonzero, bits = self.shifted
            self.packed = [*(self.packed or []), *nonzero]
            self.mask |= sum(bit << (SECTOR * self.sectors + place) for place, bit in enumerate(bits))
            self.sectors += 1
        self.shifted = None
        if self.compared is not None:
            words, before = self.compared
            nonzero = [0] * sum(bool(word) for word in words)
            for word, place in zip(words, before, strict=True):
                if word:
                    nonzero[place] = word
            self.shifted = nonzero, [int(bool(word)) for word in words]
        self.compared = None
        if sector is not None:
            ones = [int(bool(word)) for word in sector]
            self.compared = list(sector), [sum(ones[:place]) for place in range(len(ones))]


def compress_line(words: Sequence[int]) -> tuple[bytes, int]:
    """A line of 128 bytes through the compressor: what comes out, and after how many cycles."""
    engine, cycles = Compressor(), 0
    waiting = [words[begin : begin + SECTOR] for begin in range(0, len(words), SECTOR)]
    count = len(waiting)
    while engine.sectors < count:
        engine.clock(waiting.pop(0) if waiting else None)
        cycles += 1
    return b"".join(word.to_bytes(4, "little") for word in (engine.mask, *(engine.packed or []))), cycles


def decompress_line(stream: bytes) -> tuple[list[int], int]:
    """Figure 10(b): the line of a compressed item, and how many cycles a sector takes from its mask to its words.

    In one cycle the ones of eight bits of the mask are counted, in the next a sector's words take their places; a
    sector enters in each cycle.
    """
    mask, *nonzero = (int.from_bytes(stream[at : at + 4], "little") for at in range(0, len(stream), 4))
    line: list[int] = []
    counted: tuple[int, int, int] | None = None
    cycle = used = latency = 0
    while len(line) < LINE:
        if counted is not None:
            bits, first, entered = counted
            places = [(bits >> place) & 1 for place in range(SECTOR)]
            line += [nonzero[first + sum(places[:place])] if bit else 0 for place, bit in enumerate(places)]
            latency = max(latency, cycle + 1 - entered)
        bits = (mask >> (SECTOR * cycle)) & 0xFF
        counted = (bits, used, cycle) if cycle < LINE // SECTOR else None
        used, cycle = used + bits.bit_count(), cycle + 1
    return line, latency


# --- the engine ---------------------------------------------------------------------------------------------
# No policy here has cycles: both pipelines are simulated by themselves.


def random_lines() -> list[NDArray[np.float32]]:
    """Lines of the cache with few to all zeros."""
    random = np.random.default_rng(1)
    return [_sparse(random, LINE, share) for share in (0.0, 0.25, 0.5, 0.75, 0.9, 1.0) for _ in range(20)]


@pytest.mark.rule
def test_the_pipeline_of_32_bytes_a_cycle_writes_the_codecs_format() -> None:
    assert 4 * SECTOR == 32
    for array in random_lines():
        assert compress_line(array.view(np.uint32).tolist())[0] == payload(array)


@pytest.mark.rule
def test_a_line_of_128_bytes_is_compressed_in_six_cycles() -> None:
    assert {compress_line(array.view(np.uint32).tolist())[1] for array in random_lines()} == {6}


@pytest.mark.rule
def test_a_line_is_decompressed_two_cycles_after_its_sectors_arrive() -> None:
    for array in random_lines():
        line = array.view(np.uint32).tolist()
        assert decompress_line(compress_line(line)[0]) == (line, 2)


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1) | st.just(0), min_size=32, max_size=32))
def test_the_pipelines_write_the_format_and_read_it_back(line: list[int]) -> None:
    stream, cycles = compress_line(line)
    assert stream == figure_8(np.array(line, np.uint32).view(np.float32))
    assert cycles == 6
    assert decompress_line(stream) == (line, 2)


@pytest.mark.rule
def test_the_buffer_is_what_200_gb_per_s_need_over_350_ns() -> None:
    assert _is_just_enough(load_node("titan-x-maxwell-cdma").gpu.cdma)


def _is_just_enough(engine: CdmaSpec | None) -> bool:
    """Whether the buffer is 70,000 bytes, and a byte less would throttle the engine."""
    assert engine is not None
    needed = 200 * GIGA * 350 // GIGA
    smaller = replace(engine, buffer=engine.buffer - 1)
    return engine.buffer == needed == 70_000 and engine.peak == 200 * GIGA > smaller.peak


# --- links and memory ---------------------------------------------------------------------------------------


@pytest.mark.rule
def test_kernels_leave_236_gb_per_s_of_the_memory_bandwidth() -> None:
    gpu = load_node("titan-x-maxwell-cdma").gpu
    assert gpu.cdma is not None and gpu.dram_bandwidth is not None
    assert gpu.dram_bandwidth - gpu.cdma.kernel_bandwidth == 236 * GIGA


@pytest.mark.rule
def test_the_engine_reads_200_gb_per_s_at_most() -> None:
    engine = load_node("titan-x-maxwell-cdma").gpu.cdma
    assert engine is not None
    assert engine.read_bandwidth == 200 * GIGA


@pytest.mark.rule
@pytest.mark.parametrize(
    "ratio", [1, Fraction(13, 5), 6, Fraction(69, 5), 16, 20, 32], ids=lambda each: f"{float(each):g}x"
)
@pytest.mark.parametrize("dram", [0, 250])
def test_a_copy_that_needs_more_bandwidth_is_slower_by_as_much(ratio: Fraction, dram: int) -> None:
    """On the node as it is, and on one of 250 GB/s that leaves 150 GB/s; to the nanosecond.

    200 GB/s are 12.5 times the nominal 16 GB/s, so the link, which carries 12.8, needs 160.
    """
    node, limit = load_node("titan-x-maxwell-cdma"), 160 * GIGA
    if dram:
        node, limit = replace(node, gpu=replace(node.gpu, dram_bandwidth=dram * GIGA)), 150 * GIGA
    raw = 2 * 10**8
    small = int(raw / ratio)
    slower = max(Fraction(1), Fraction(raw, small) * node.link.d2h_bandwidth / limit)
    expected = ceil(Fraction(small * GIGA, node.link.d2h_bandwidth) * slower)
    assert abs(copy_ns(node, raw, small) - expected) <= 1


def copy_ns(node: NodeSpec, raw: int, small: int) -> int:
    """Duration of the simulated offload of a block of `raw` bytes that the engine compresses to `small`."""
    trace = chain([5, 5], [5, 5], [raw, 1])
    sizes = (CompressedSize("x1", 0, "zvc", "nchw", raw, small, 1), CompressedSize("x2", 0, "zvc", "nchw", 1, 1, 1))
    result = simulate(replace(trace, compressibility=sizes), node, "cdma", iterations=1)
    (span,) = (span for span in result.timeline if span.label == "copy_d2h" and span.name == "x1")
    return span.end_ns - span.start_ns


@pytest.mark.rule
def test_vdnns_copies_reach_the_12_8_gb_per_s_of_pcie() -> None:
    node, size = load_node("titan-x-maxwell"), 128 * 10**6
    result = simulate(chain([5, 5], [5, 5], [size, size]), node, "vdnn", iterations=1)
    copies = [span for span in result.timeline if span.kind is SpanKind.COPY and span.bytes]
    moved, took = sum(span.bytes for span in copies), sum(span.end_ns - span.start_ns for span in copies)
    assert moved / took == 12.8


@pytest.mark.rule
def test_pages_that_fault_one_at_a_time_reach_0_2_gb_per_s() -> None:
    """Pages of 4 KiB, each with a fault of the shortest published time; by the longest, 50 us, they reach 0.1 GB/s."""
    assert round(paged(load_node("titan-x-maxwell"), FAULT_NS), 1) == 0.2


def paged(node: NodeSpec, fault_ns: int) -> float:
    """GB/s at which pages reach the GPU, each by a fault of its own, where nothing is evicted for them."""
    pages = 1000
    trace = chain([5] * 3, [5] * 3, [PAGE * pages, 0, 0])
    how = {"page": PAGE, "chunk": PAGE, "fault_batch": 1, "fault_latency_ns": fault_ns, "write_back": "dirty"}
    result = simulate(trace, node, "um", parameters=how, budget=PAGE * (pages - 1), iterations=2)
    spans = [span for span in result.timeline if span.iteration == 1]
    arrived = sum(span.bytes for span in spans if span.label == "copy_h2d")
    return arrived / sum(span.end_ns - span.start_ns for span in spans if span.kind.is_stall)


@pytest.mark.rule
@pytest.mark.parametrize("gpu", GPUS)
def test_batches_are_those_of_table_ii(gpu: str) -> None:
    assert {name: trace.info.batch for name, trace in study(gpu).traces.items()} == BATCHES


@pytest.mark.rule
def test_each_of_four_gpus_on_two_shared_switches_has_8_gb_per_s() -> None:
    """Section III: while all four offload AlexNet's feature maps at once."""
    node, trace = load_node("titan-x-maxwell-x4"), study("maxwell").traces["AlexNet"]
    result = simulate(trace, node, "vdnn", gpus=node.gpus, exchange="gather", iterations=1)
    maps = {block.id for block in trace.blocks if block.kind is BlockKind.ACTIVATION}
    rates = [
        span.bytes / (span.end_ns - span.start_ns)
        for span in result.timeline
        if span.label == "copy_d2h" and span.name.partition(".gpu")[0] in maps and span.bytes > 10**6
    ]
    assert fmean(rates) == 8


# --- the tests above, by hand and where they have to fail -----------------------------------------------------


def test_a_window_of_figure_8_by_hand() -> None:
    one = np.float32(1).tobytes()
    assert figure_8([0.0, 1.0, 0.0, 1.0]) == b"\x0a\x00\x00\x00" + one + one
    assert figure_8([0.0] * 33) == bytes(8), "what is left at the end has a mask too"


def test_other_zvc_formats_break_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    def backwards(array: NDArray[np.float32]) -> bytes:
        return figure_8(array[::-1].copy())

    def of_longer_windows(array: NDArray[np.float32]) -> bytes:
        return bytes(8 * -(-array.size // 64)) + array[array != 0].tobytes()

    for encode in (backwards, of_longer_windows):
        monkeypatch.setattr(f"{__name__}.payload", encode)
        assert fails(test_zvc_is_the_format_of_figure_8, 4096, 0.3)
    monkeypatch.setattr(f"{__name__}.payload", lambda array: figure_8(array) + b"\x00")
    assert fails(test_zvc_makes_zeros_alone_32_times_smaller)
    monkeypatch.setattr(f"{__name__}.payload", lambda array: array.tobytes())
    assert fails(test_zvc_makes_values_without_zeros_a_32nd_larger)


@pytest.mark.parametrize("size", [35_000, 69_999, 140_000])
def test_another_buffer_is_not_the_published_one(size: int) -> None:
    engine = load_node("titan-x-maxwell-cdma").gpu.cdma
    assert engine is not None
    assert not _is_just_enough(replace(engine, buffer=size))


def test_a_copy_without_the_penalty_breaks_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    def free(node: NodeSpec, raw: int, small: int) -> int:
        return -(-small * GIGA // node.link.d2h_bandwidth)

    monkeypatch.setattr(f"{__name__}.copy_ns", free)
    assert fails(test_a_copy_that_needs_more_bandwidth_is_slower_by_as_much, Fraction(32), 0)
    assert not fails(test_a_copy_that_needs_more_bandwidth_is_slower_by_as_much, Fraction(6), 0)


def test_the_penalty_by_hand() -> None:
    node = load_node("titan-x-maxwell-cdma")
    assert copy_ns(node, 128_000_000, 64_000_000) == 5_000_000, "12.8 GB/s: it reads 25.6"
    assert copy_ns(node, 128_000_000, 4_000_000) == 800_000, "it would read 409.6 GB/s, and may 160, 12.5 times 12.8"


@pytest.mark.parametrize("fault_ns", [20_000, 45_000])
def test_a_page_takes_its_fault_and_its_copy(fault_ns: int) -> None:
    assert paged(load_node("titan-x-maxwell"), fault_ns) == pytest.approx(4096 / (fault_ns + 320), rel=1e-6)
