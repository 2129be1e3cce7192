"""What compressed memory did in an iteration, as numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Compression:
    """Compressed memory with a buddy memory (Buddy Compression, sections 3 and 4).

    ratio: bytes of live blocks over their bytes in device memory, over ten moments of the iteration. overflow_share:
    share of their memory-entries that do not fit there, so that a part lies in buddy memory, mean over the moments;
    drift: at each of them. buddy_peak_bytes: of buddy memory that live blocks owned at most, used or not. read_bytes,
    written_bytes: that kernels moved from and to it in the iteration. hit_rate: share of the visits to compressed
    entries that found their metadata in the cache. Where several GPUs train together, what kernels moved is that of
    all, and the rest of one.
    """

    ratio: float
    overflow_share: float
    buddy_peak_bytes: int
    read_bytes: int
    written_bytes: int
    hit_rate: float
    drift: tuple[float, ...] = ()

    def rows(self) -> list[tuple[str, int | float | None, str]]:
        """Keys, values and units, as `simgpu.analysis.metrics.Metrics.rows` lists them."""
        return [
            ("compression_ratio", self.ratio, ""),
            ("overflow_share", self.overflow_share, ""),
            ("buddy_peak_bytes", self.buddy_peak_bytes, "B"),
            ("buddy_read_bytes", self.read_bytes, "B"),
            ("buddy_written_bytes", self.written_bytes, "B"),
            ("metadata_hit_rate", self.hit_rate, ""),
        ]
