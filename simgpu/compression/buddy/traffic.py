"""Traffic of kernels on compressed blocks: bytes at device memory, bytes over the link, and the time they take.

Buddy Compression (Choukse et al.), section 4.2, describes the effects; they are counted as follows:

* A compressed entry is always moved completely (over-fetch); of an incompressible one, only the requested sectors are
  moved. An entry of zeros needs only its metadata.
* The sectors of an entry that fit its target are in device memory, the others in buddy memory. With a target of 8
  bytes, four entries share a sector of device memory: a sequential walk moves each such sector once, any other walk
  moves a full sector for each access. The part of a compressed entry in buddy memory is rounded up to sectors; that of
  an incompressible entry is the other 120 bytes.
* A write to some of the sectors of a compressed entry reads the entry first.
* Bandwidth-only compression has neither metadata nor buddy memory, so an entry of zeros takes a sector.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import NamedTuple

from simgpu.compression.buddy.streams import EntryAccesses
from simgpu.compression.buddy.targets import RAW
from simgpu.compression.codecs.entries import ENTRY_BYTES, ENTRY_SIZES, SECTOR_BYTES, SECTORS
from simgpu.graph.compressed import Demand
from simgpu.hardware.spec import BuddyMode, BuddySpec, Duplex, LinkSpec
from simgpu.memory.transfer import NANO, stream_ns
from simgpu.trace.model import AccessOrder

#: Traffic is counted in fractions of a byte with this denominator: there are 4 or 6 ways to select some of 4 sectors.
_PARTS = 12


class Moved(NamedTuple):
    """Bytes that a walk moves, and how many of its requested bytes wait for decompression or for buddy memory.

    requested: without compression. device: to or from device memory. read, written: from and to buddy memory.
    decompressed: requested by accesses that read a compressed entry; far: by accesses that read buddy memory.
    """

    requested: int = 0
    device: int = 0
    read: int = 0
    written: int = 0
    decompressed: int = 0
    far: int = 0

    def plus(self, other: Moved) -> Moved:
        """The sum of both."""
        return Moved(*(one + another for one, another in zip(self, other, strict=True)))


def moved_by(
    walk: EntryAccesses, counts: Sequence[int] | None, target: int, mode: BuddyMode = BuddyMode.CAPACITY
) -> Moved:
    """Traffic of a walk through a block; bytes are rounded up once for the complete walk.

    counts: number of the block's entries of each of `ENTRY_SIZES`; None if unknown, which counts as incompressible.
    target: bytes of device memory per entry.

    >>> dense = EntryAccesses(0, 10, False, AccessOrder.SEQUENTIAL, 4, accesses=10)
    >>> moved_by(dense, (2, 0, 0, 0, 4, 0, 0, 4), target=64)
    Moved(requested=1280, device=512, read=256, written=0, decompressed=512, far=512)
    """
    requested = SECTOR_BYTES * walk.sectors * walk.accesses
    if target == RAW and (counts is None or mode is BuddyMode.CAPACITY):
        return Moved(requested, requested)
    if counts is None:
        counts = (*(0 for _ in ENTRY_SIZES[1:]), walk.entries)
    once = [_of_class(walk, size, sectors, target, mode) for size, sectors in zip(ENTRY_SIZES, SECTORS, strict=True)]
    sums = [sum(count * each[part] for count, each in zip(counts, once, strict=True)) for part in range(1, 6)]
    return Moved(requested, *(-(-total * walk.accesses // (_PARTS * walk.entries)) for total in sums))


def _of_class(walk: EntryAccesses, size: int, sectors: int, target: int, mode: BuddyMode) -> Moved:
    """One access to an entry of one size, everything times `_PARTS`."""
    requested, in_part = _PARTS * SECTOR_BYTES * walk.sectors, walk.sectors < 4
    reads = not walk.write or in_part
    if mode is BuddyMode.BANDWIDTH_ONLY:
        if size == ENTRY_BYTES:
            return Moved(0, requested)
        times = 2 if walk.write and in_part else 1
        return Moved(0, _PARTS * SECTOR_BYTES * max(sectors, 1) * times, decompressed=requested if reads else 0)
    if size == 0:
        return Moved()
    if size == ENTRY_BYTES:
        return _of_incompressible(walk, target)
    near = _PARTS * min(SECTOR_BYTES * sectors, target)
    if _alone(walk, target):
        near = _PARTS * SECTOR_BYTES
    beyond = _PARTS * SECTOR_BYTES * -(-max(size - target, 0) // SECTOR_BYTES)
    far = requested if beyond else 0
    if not walk.write:
        return Moved(0, near, beyond, 0, requested, far)
    return Moved(0, 2 * near, beyond, beyond, requested, far) if in_part else Moved(0, near, 0, beyond)


def _of_incompressible(walk: EntryAccesses, target: int) -> Moved:
    """One access to an entry that does not compress, everything times `_PARTS`; any of its sectors may be requested."""
    requested = _PARTS * SECTOR_BYTES * walk.sectors
    near = requested * target // ENTRY_BYTES
    beyond = requested - near
    if _alone(walk, target):
        # Only the first sector has a part in device memory.
        near = requested // 4
    if walk.write:
        return Moved(0, near, 0, beyond)
    within = target // SECTOR_BYTES
    return Moved(0, near, beyond, 0, 0, requested - requested * comb(within, walk.sectors) // comb(4, walk.sectors))


def _alone(walk: EntryAccesses, target: int) -> bool:
    """Whether an access moves a sector of device memory that no other access of the walk shares."""
    return target < SECTOR_BYTES and walk.order is not AccessOrder.SEQUENTIAL


def demand_of(
    moved: Moved, accesses: int, misses: int, lines: int, buddy: BuddySpec, link: LinkSpec, dram: int
) -> Demand:
    """The demand of a kernel with this traffic.

    accesses: to compressed entries, `misses` of them without metadata in the cache; lines: metadata lines moved.
    dram: bandwidth of device memory, bytes per second.

    Time at device memory is limited by bandwidth or by latency: at most `in_flight` requested bytes are in flight at
    once, each for the memory's latency and the waits of its access (Little's law). An access waits for decompression;
    if it reads buddy memory, also for the link's latency and, on a miss, first for its metadata (as we read section
    3.4, the optimization that it mentions is not part of the final design). If an entry is entirely in device memory, a
    miss costs only bandwidth: data and metadata are fetched together. No access waits for a write of complete entries,
    so the latency of compression (table 2) is not counted.

    >>> from simgpu.hardware.nodes import load_node
    >>> node = load_node("buddy-gpu")
    >>> moved = Moved(requested=9_000_000, device=4_500_000, read=1_500_000)
    >>> demand_of(moved, 0, 0, 0, node.gpu.buddy, node.link, node.gpu.dram_bandwidth)
    Demand(memory_ns=10000, compressed_ns=5651, read=1500000, written=0, link_ns=15000)
    """
    metadata = lines * buddy.cache.line
    latency = buddy.memory_latency_ns
    waits = moved.decompressed * buddy.decompression_ns + moved.far * link.latency_ns
    if accesses:
        waits += -(-moved.far * misses * latency // accesses)
    without = moved.requested * latency
    return Demand(
        max(stream_ns(moved.requested, dram), -(-without // buddy.in_flight)),
        max(stream_ns(moved.device + metadata, dram), -(-(without + waits) // buddy.in_flight)),
        moved.read,
        moved.written,
        link_ns(*over_link(moved.read, moved.written, buddy.packet_header), link),
    )


def over_link(read: int, written: int, header: int) -> tuple[int, int]:
    """Bytes from and to buddy memory that cross the link with their packets.

    Each sector that is read or written has a header on its way, and another one goes the other way: the request for it,
    or its confirmation. header: bytes, 0 for none.

    >>> over_link(64, 32, header=16), over_link(64, 32, header=0)
    ((112, 80), (64, 32))
    """
    headers = header * sum(-(-size // SECTOR_BYTES) for size in (read, written))
    return read + headers, written + headers


def link_ns(read: int, written: int, link: LinkSpec) -> int:
    """Time in nanoseconds to move bytes from and to buddy memory over a link without other traffic.

    >>> link_ns(1000, 500, LinkSpec("wire", 10**9, 10**9))
    1000
    >>> link_ns(1000, 500, LinkSpec("bus", 10**9, 10**9, 0, Duplex.HALF))
    1500
    """
    if link.duplex is Duplex.HALF:
        both = max(link.d2h_bandwidth, link.h2d_bandwidth)
        less, more = sorted((read, written))
        # Half duplex: each direction has half the bandwidth until the smaller part has passed. Integer nanoseconds and
        # bytes per second, as in flows.
        shared = stream_ns(less, both // 2) if less and both > 1 else stream_ns(less, both)
        left = more * NANO - (both // 2) * shared
        return shared + max(0, -(-left // both))
    return max(stream_ns(read, link.h2d_bandwidth), stream_ns(written, link.d2h_bandwidth))
