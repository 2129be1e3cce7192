"""Statistics of a trace: kernels and time, bytes by kind, peaks of live bytes, what was recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from simgpu.trace.model import RELEASED_AT_END, Block, BlockKind, Kernel, Phase, Trace
from simgpu.units import format_bytes, format_time

#: How many of the biggest blocks are listed.
_LISTED_BLOCKS = 10


@dataclass(frozen=True, slots=True)
class PhaseStats:
    """Kernels of one phase and their recorded time (ns)."""

    phase: Phase
    kernels: int
    duration_ns: int


@dataclass(frozen=True, slots=True)
class KindStats:
    """Blocks of one kind and their bytes, summed whether or not they live at the same time."""

    kind: BlockKind
    blocks: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The maximum live bytes while one kernel runs, and the first such kernel."""

    bytes: int
    kernel: str


@dataclass(frozen=True, slots=True)
class SparsityStats:
    """Share of zeros in a block at the first and the last epoch it is known at, and between which values it moved."""

    block: str
    first: float
    lowest: float
    highest: float
    last: float


@dataclass(frozen=True, slots=True)
class TraceStats:
    """A trace in numbers; times in nanoseconds, sizes in bytes.

    constants, constant_bytes: blocks whose value is an input of the iteration: persistent, or copied from the host.
    lifetimes_known, lifetimes_expected: blocks with a recorded release, of those that need one (a persistent block
    without one is held throughout, and a workspace is held while its kernel runs).
    peak_recorded: over recorded lifetimes, None where some are unknown. peak_needed: from the first use to the last;
    persistent blocks count throughout, or until their last use where their release is recorded; None where it is not
    known what kernels read.
    sparsity_blocks: feature maps with a measured sparsity, out of `activations`; sparsity_epochs: at how many epochs.
    sparsity: of each block with zeros at some epoch, in the trace's order; empty unless there are several epochs.
    iqr_ns: the spreads of all kernels summed, None unless each has one; widest: the kernel with the largest.
    framework_peak_bytes: the peak that the framework itself reported, None where it did not.
    """

    kernels: int
    compute_ns: int
    phases: tuple[PhaseStats, ...]
    blocks: int
    block_bytes: int
    kinds: tuple[KindStats, ...]
    constants: int
    constant_bytes: int
    biggest: tuple[Block, ...]
    lifetimes_known: int
    lifetimes_expected: int
    peak_recorded: Peak | None
    peak_needed: Peak | None
    activations: int
    sparsity_blocks: int
    sparsity_epochs: int
    sparsity: tuple[SparsityStats, ...]
    iqr_ns: int | None
    widest: Kernel | None
    framework_peak_bytes: int | None
    layers: int
    streams: int
    pure: int
    impure: int

    def summary_rows(self) -> list[tuple[str, str]]:
        """Title and value pairs, ready to print."""
        known = f"{self.lifetimes_known} of {self.lifetimes_expected}"
        return [
            ("kernels", str(self.kernels)),
            ("compute", format_time(self.compute_ns)),
            ("spread over repetitions", self._spread_text()),
            ("streams", str(self.streams)),
            ("layers", str(self.layers) if self.layers else "not recorded"),
            ("blocks", f"{self.blocks}, {format_bytes(self.block_bytes)}"),
            ("constants", f"{self.constants}, {format_bytes(self.constant_bytes)}"),
            ("recorded lifetimes", known),
            ("peak, recorded lifetimes", self.recorded_peak_text()),
            ("peak, released at last use", _peak_text(self.peak_needed, "reads not recorded")),
            ("peak, framework's allocator", self._framework_peak_text()),
            ("feature maps with sparsity", self._sparsity_text()),
            ("pure kernels", f"{self.pure} yes, {self.impure} no, {self.kernels - self.pure - self.impure} unknown"),
        ]

    def recorded_peak_text(self) -> str:
        """The peak over recorded lifetimes, or that they are not recorded."""
        return _peak_text(self.peak_recorded, "lifetimes not recorded")

    def _spread_text(self) -> str:
        if self.iqr_ns is None or self.widest is None or self.widest.iqr_ns is None:
            return "not recorded"
        share = f", {self.iqr_ns / self.compute_ns:.1%} of compute" if self.compute_ns else ""
        widest = f"{self.widest.id}, {format_time(self.widest.iqr_ns)} of {format_time(self.widest.duration_ns)}"
        return f"{format_time(self.iqr_ns)} summed over kernels{share}; widest {widest}"

    def _framework_peak_text(self) -> str:
        if self.framework_peak_bytes is None:
            return "not recorded"
        text = f"{format_bytes(self.framework_peak_bytes)} ({self.framework_peak_bytes} bytes)"
        if self.peak_recorded is None or not self.peak_recorded.bytes:
            return text
        return f"{text}, {self.framework_peak_bytes / self.peak_recorded.bytes:.3f} of that over recorded lifetimes"

    def _sparsity_text(self) -> str:
        epochs = f", at {self.sparsity_epochs} epochs" if self.sparsity_epochs > 1 else ""
        return f"{self.sparsity_blocks} of {self.activations}{epochs}"

    def phase_rows(self) -> list[tuple[str, str, str]]:
        """Phase, kernels, time."""
        return [(str(row.phase), str(row.kernels), format_time(row.duration_ns)) for row in self.phases]

    def kind_rows(self) -> list[tuple[str, str, str]]:
        """Kind, blocks, bytes."""
        return [(str(row.kind), str(row.blocks), format_bytes(row.bytes)) for row in self.kinds]

    def biggest_rows(self) -> list[tuple[str, str, str]]:
        """Block, kind, bytes, the biggest first."""
        return [(block.id, str(block.kind), format_bytes(block.bytes)) for block in self.biggest]

    def sparsity_rows(self) -> list[tuple[str, ...]]:
        """Block, share of zeros at the first epoch, lowest, highest, at the last epoch."""
        return [
            (row.block, *(f"{share:.1%}" for share in (row.first, row.lowest, row.highest, row.last)))
            for row in self.sparsity
        ]


def trace_stats(trace: Trace) -> TraceStats:
    """Count a valid trace.

    >>> from simgpu.trace.chain import chain
    >>> stats = trace_stats(chain([1, 2], [3, 4], [100, 200]))
    >>> stats.kernels, stats.compute_ns, stats.peak_recorded, stats.peak_needed
    (4, 10, None, Peak(bytes=300, kernel='F1'))
    """
    kinds = {kind: [block for block in trace.blocks if block.kind is kind] for kind in BlockKind}
    phases = {phase: [kernel for kernel in trace.kernels if kernel.phase is phase] for phase in Phase}
    constants = [block for block in trace.blocks if block.persistent or block.host_write is not None]
    expected = [block for block in trace.blocks if _needs_lifetime(block)]
    known = sum(block.release is not None for block in expected)
    measured = {sample.block for sample in trace.sparsity}
    spreads = [kernel.iqr_ns for kernel in trace.kernels if kernel.iqr_ns is not None]
    recorded, needed = _lifetimes(trace)
    return TraceStats(
        kernels=len(trace.kernels),
        compute_ns=trace.compute_ns,
        phases=tuple(
            PhaseStats(phase, len(rows), sum(kernel.duration_ns for kernel in rows))
            for phase, rows in phases.items()
            if rows
        ),
        blocks=len(trace.blocks),
        block_bytes=_total(trace.blocks),
        kinds=tuple(KindStats(kind, len(rows), _total(rows)) for kind, rows in kinds.items() if rows),
        constants=len(constants),
        constant_bytes=_total(constants),
        biggest=tuple(sorted(trace.blocks, key=lambda block: -block.bytes)[:_LISTED_BLOCKS]),
        lifetimes_known=known,
        lifetimes_expected=len(expected),
        peak_recorded=_peak(trace, recorded) if known == len(expected) else None,
        peak_needed=_peak(trace, needed) if trace.records_reads else None,
        activations=len(kinds[BlockKind.ACTIVATION]),
        sparsity_blocks=sum(block.id in measured for block in kinds[BlockKind.ACTIVATION]),
        sparsity_epochs=len({sample.epoch for sample in trace.sparsity}),
        sparsity=tuple(_sparsity(trace)),
        iqr_ns=sum(spreads) if len(spreads) == len(trace.kernels) else None,
        widest=max(trace.kernels, key=lambda kernel: kernel.iqr_ns or 0, default=None),
        framework_peak_bytes=trace.info.framework_peak_bytes,
        layers=len({kernel.layer for kernel in trace.kernels if kernel.layer is not None}),
        streams=len({kernel.stream for kernel in trace.kernels}),
        pure=sum(kernel.pure is True for kernel in trace.kernels),
        impure=sum(kernel.pure is False for kernel in trace.kernels),
    )


def _sparsity(trace: Trace) -> Iterator[SparsityStats]:
    shares: dict[str, dict[int, float]] = {}
    for sample in trace.sparsity:
        shares.setdefault(sample.block, {})[sample.epoch] = sample.sparsity
    for block, at in shares.items():
        lowest, highest = min(at.values()), max(at.values())
        if len(at) > 1 and highest:
            yield SparsityStats(block, at[min(at)], lowest, highest, at[max(at)])


def _total(blocks: Iterable[Block]) -> int:
    return sum(block.bytes for block in blocks)


def _peak_text(peak: Peak | None, otherwise: str) -> str:
    return f"{format_bytes(peak.bytes)} ({peak.bytes} bytes) at kernel {peak.kernel}" if peak else otherwise


def _needs_lifetime(block: Block) -> bool:
    return not block.persistent and block.kind is not BlockKind.WORKSPACE


_Lifetimes = list[tuple[int, int, int]]


def _lifetimes(trace: Trace) -> tuple[_Lifetimes, _Lifetimes]:
    """Recorded and needed lifetimes: (first kernel, last kernel, bytes), both inclusive, for each block.

    Where no release is recorded, the recorded lifetime is the needed one.
    """
    position = {kernel.id: index for index, kernel in enumerate(trace.kernels)}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, kernel in enumerate(trace.kernels):
        for name in (*kernel.reads, *kernel.writes):
            first.setdefault(name, index)
            last[name] = index
    end = len(trace.kernels) - 1
    recorded, needed = [], []
    for block in trace.blocks:
        begin = 0 if block.persistent else first.get(block.id, 0)
        begin = position[block.host_write] if block.host_write is not None else begin
        throughout = block.persistent and block.release in (None, RELEASED_AT_END)
        last_use = end if throughout else last.get(block.id, begin)
        release = last_use if block.release is None else position.get(block.release, end)
        recorded.append((begin, release, block.bytes))
        needed.append((begin, last_use, block.bytes))
    return recorded, needed


def _peak(trace: Trace, lifetimes: _Lifetimes) -> Peak | None:
    change = [0] * (len(trace.kernels) + 1)
    for begin, end, size in lifetimes:
        change[begin] += size
        change[end + 1] -= size
    best: Peak | None = None
    live = 0
    for kernel, step in zip(trace.kernels, change, strict=False):
        live += step
        if best is None or live > best.bytes:
            best = Peak(live, kernel.id)
    return best
