"""Checks of cDMA's format and engine: ZVC's stream, its pipelines, the buffer, and what the DRAM leaves to a copy.

Each rule is tried against a derivation of its own from the paper's text, which takes nothing from the code it tries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgpu.compression.codecs.frame import HEADER_BYTES
from simgpu.compression.codecs.registry import make_codec
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import CdmaSpec, NodeSpec
from simgpu.papers.checks.cdma_traces import GPUS, study
from simgpu.papers.checks.found import rule
from simgpu.simulation.run import simulate
from simgpu.timeline.model import SpanKind
from simgpu.trace.chain import chain
from simgpu.trace.model import BlockKind, CompressedSize

GIGA = 10**9
#: Table II.
BATCHES = {"AlexNet": 256, "OverFeat": 256, "NiN": 128, "VGG": 128, "SqueezeNet": 512, "GoogLeNet": 256}
#: Words of a window, of a sector, and of a line of the cache, 4 bytes each (sections V-A and V-B).
WINDOW, SECTOR, LINE = 32, 8, 32
#: The shortest handling of a page fault that is published (Zheng et al., HPCA 2016: 20 to 50 us), and a page.
FAULT_NS, PAGE = 20_000, 4096
Encoder = Callable[[NDArray[np.float32]], bytes]
Sender = Callable[[NodeSpec, int, int], int]


def zvc(encode: Encoder | None = None) -> dict[str, Any]:
    """Figure 8. encode: payload of an array; without: ZVC's."""
    encode = encode or _payload
    random = np.random.default_rng(0)
    arrays = [
        _sparse(random, int(size), share) for size in (1, 31, 32, 33, 4096, 5000) for share in (0.0, 0.3, 0.6, 1.0)
    ]
    wrong = [array for array in arrays if encode(array) != figure_8(array)]
    empty, full = _sparse(random, 4096, 1.0), _sparse(random, 4096, 0.0)
    smaller, larger = Fraction(empty.nbytes, len(encode(empty))), Fraction(len(encode(full)), full.nbytes) - 1
    return {
        "stream": rule(not wrong, f"{len(arrays) - len(wrong)} of {len(arrays)} arrays, to the byte"),
        "zeros": rule(smaller == 32, f"{float(smaller):g} times smaller"),
        "dense": rule(larger == Fraction(1, 32), f"{float(larger):.3%} larger"),
    }


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


def _payload(array: NDArray[np.float32]) -> bytes:
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
            kept, bits = self.shifted
            self.packed = [*(self.packed or []), *kept]
            self.mask |= sum(bit << (SECTOR * self.sectors + place) for place, bit in enumerate(bits))
            self.sectors += 1
        self.shifted = None
        if self.compared is not None:
            words, before = self.compared
            kept = [0] * sum(bool(word) for word in words)
            for word, place in zip(words, before, strict=True):
                if word:
                    kept[place] = word
            self.shifted = kept, [int(bool(word)) for word in words]
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
    mask, *kept = (int.from_bytes(stream[at : at + 4], "little") for at in range(0, len(stream), 4))
    line: list[int] = []
    counted: tuple[int, int, int] | None = None
    cycle = used = latency = 0
    while len(line) < LINE:
        if counted is not None:
            bits, first, entered = counted
            places = [(bits >> place) & 1 for place in range(SECTOR)]
            line += [kept[first + sum(places[:place])] if bit else 0 for place, bit in enumerate(places)]
            latency = max(latency, cycle + 1 - entered)
        bits = (mask >> (SECTOR * cycle)) & 0xFF
        counted = (bits, used, cycle) if cycle < LINE // SECTOR else None
        used, cycle = used + bits.bit_count(), cycle + 1
    return line, latency


def engine() -> dict[str, Any]:
    """Section V-B's pipelines on lines, and section V-C's buffer."""
    random = np.random.default_rng(1)
    arrays = [_sparse(random, LINE, share) for share in (0.0, 0.25, 0.5, 0.75, 0.9, 1.0) for _ in range(20)]
    lines = [array.view(np.uint32).tolist() for array in arrays]
    packed = [compress_line(line) for line in lines]
    same = sum(stream == _payload(array) for (stream, _), array in zip(packed, arrays, strict=True))
    back = [decompress_line(stream) for stream, _ in packed]
    again = sum(line == found for line, (found, _) in zip(lines, back, strict=True))
    sectors = LINE // SECTOR
    into, out = {cycles for _, cycles in packed}, {cycles for _, cycles in back}
    return {
        "sector": rule(
            4 * SECTOR == 32 and same == len(lines), f"{same} of {len(lines)} lines as ZVC's codec has them"
        ),
        "compress": rule(into == {6}, f"{_of(into)} cycles for {sectors} sectors"),
        "decompress": rule(
            out == {2} and again == len(lines),
            f"{_of(out)} cycles more than the sectors take to come; {again} of {len(lines)} lines are what they were",
        ),
        "buffer": buffer(load_node("titan-x-maxwell-cdma").gpu.cdma),
    }


def _of(cycles: Iterable[int]) -> str:
    return " or ".join(map(str, sorted(cycles)))


def buffer(engine: CdmaSpec | None) -> dict[str, Any]:
    """Whether the engine's buffer is just what 200 GB/s need over 350 ns: a byte less would throttle it."""
    assert engine is not None
    needed = 200 * GIGA * 350 // GIGA
    smaller = replace(engine, buffer=engine.buffer - 1)
    fits = engine.buffer == needed == 70_000 and engine.peak == 200 * GIGA > smaller.peak
    return rule(fits, f"{engine.buffer} B; {smaller.peak / GIGA:.3f} GB/s with a byte less")


def dram(send: Sender | None = None) -> dict[str, Any]:
    """Section VI's penalty, in simulated copies. send: nanoseconds of a copy; without: a simulated one's."""
    send = send or copy_ns
    node = load_node("titan-x-maxwell-cdma")
    assert node.gpu.cdma is not None and node.gpu.dram_bandwidth is not None
    left = node.gpu.dram_bandwidth - node.gpu.cdma.kernel_bandwidth
    ratios = (1, Fraction(13, 5), 6, Fraction(69, 5), 16, 20, 32)
    starved = replace(node, gpu=replace(node.gpu, dram_bandwidth=250 * GIGA))
    raw, tried, wrong = 2 * 10**8, 0, []
    for on, limit in ((node, 200 * GIGA), (starved, 150 * GIGA)):
        for ratio in ratios:
            small = int(raw / ratio)
            slower = max(Fraction(1), Fraction(raw, small) * on.link.d2h_bandwidth / limit)
            expected = ceil(Fraction(small * GIGA, on.link.d2h_bandwidth) * slower)
            tried += 1
            if abs(send(on, raw, small) - expected) > 1:
                wrong.append(f"{float(ratio):g}x")
    return {
        "left": rule(left == 236 * GIGA, f"{left / GIGA:g} GB/s"),
        "cap": rule(node.gpu.cdma.read_bandwidth == 200 * GIGA, f"{node.gpu.cdma.read_bandwidth / GIGA:g} GB/s"),
        "penalty": rule(not wrong, f"{tried - len(wrong)} of {tried} simulated copies, to a nanosecond"),
    }


def copy_ns(node: NodeSpec, raw: int, small: int) -> int:
    """How long a block of that many bytes leaves for, of which the engine makes `small`."""
    trace = chain([5, 5], [5, 5], [raw, 1])
    sizes = (CompressedSize("x1", 0, "zvc", "nchw", raw, small, 1), CompressedSize("x2", 0, "zvc", "nchw", 1, 1, 1))
    found = simulate(replace(trace, compressibility=sizes), node, "cdma", iterations=1)
    (span,) = (span for span in found.timeline if span.kind is SpanKind.COPY_D2H and span.name == "x1")
    return span.end_ns - span.start_ns


def pcie() -> dict[str, Any]:
    """Section III: the rate of vDNN's copies, and of pages that come one fault at a time, GB/s."""
    node, size = load_node("titan-x-maxwell"), 128 * 10**6
    found = simulate(chain([5, 5], [5, 5], [size, size]), node, "vdnn", iterations=1)
    copies = [span for span in found.timeline if span.kind in (SpanKind.COPY_D2H, SpanKind.COPY_H2D) and span.bytes]
    moved, took = sum(span.bytes for span in copies), sum(span.end_ns - span.start_ns for span in copies)
    return {"vdnn": moved / took, "pages": round(paged(node, FAULT_NS), 1)}


def paged(node: NodeSpec, fault_ns: int) -> float:
    """GB/s at which pages reach the GPU, each by a fault of its own, where nothing has to be copied out for them."""
    pages = 1000
    trace = chain([5] * 3, [5] * 3, [PAGE * pages, 0, 0])
    how = {"page": PAGE, "chunk": PAGE, "fault_batch": 1, "fault_latency_ns": fault_ns, "write_back": "dirty"}
    found = simulate(trace, node, "um", parameters=how, budget=PAGE * (pages - 1), iterations=2)
    spans = [span for span in found.timeline if span.iteration == 1]
    came = sum(span.bytes for span in spans if span.kind is SpanKind.COPY_H2D)
    return came / sum(span.end_ns - span.start_ns for span in spans if span.kind.is_stall)


def batches() -> dict[str, Any]:
    """Table II, of the studies' traces."""
    found = {gpu: {name: trace.info.batch for name, trace in study(gpu).traces.items()} for gpu in GPUS}
    told = ", ".join(f"{name} {batch}" for name, batch in found[GPUS[0]].items())
    return {"batches": rule(all(of == BATCHES for of in found.values()), told)}


def shared() -> dict[str, Any]:
    """Section III: GB/s of each of four GPUs that offload AlexNet's feature maps at once, by two shared switches."""
    node, trace = load_node("titan-x-maxwell-x4"), study("maxwell").traces["AlexNet"]
    found = simulate(trace, node, "vdnn", gpus=node.gpus, exchange="gather", iterations=1)
    maps = {block.id for block in trace.blocks if block.kind is BlockKind.ACTIVATION}
    rates = [
        span.bytes / (span.end_ns - span.start_ns)
        for span in found.timeline
        if span.kind is SpanKind.COPY_D2H and span.name.partition(".gpu")[0] in maps and span.bytes > 10**6
    ]
    return {"each": fmean(rates)}
