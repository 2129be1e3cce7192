"""The compressed size of a block in a codec, from measured sizes or the sparsity in a trace.

Measured sizes take precedence. Without them, sizes in ZVC and CSR follow from the sparsity alone; those in RLE, LZ4 and
zlib do not, because they depend on the positions of the zeros, nor do those in BPC, which hardly depend on zeros. Sizes
are those of the codec's format, even if that exceeds the block: the caller decides whether to send such a block
uncompressed.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from simgpu.compression.codecs.base import SMALLEST_WINDOW
from simgpu.compression.codecs.csr import csr_bytes
from simgpu.compression.codecs.registry import codec_class
from simgpu.compression.codecs.zvc import zvc_bytes
from simgpu.errors import InputError
from simgpu.trace.model import CompressedSize

#: Codecs whose size follows from the sparsity.
FROM_SPARSITY = ("zvc", "csr")


def compressed_bytes(
    block_bytes: int,
    itemsize: int,
    codec: str,
    sparsity: float | None = None,
    measured: Iterable[CompressedSize] = (),
    window: int = SMALLEST_WINDOW,
) -> int:
    """Compressed bytes of a block of `block_bytes` bytes in a codec.

    itemsize: bytes of an element, 1, 2 or 4; remaining bytes count as one more element.
    sparsity: share of zeros, 0..1. The number of zeros is elements x sparsity, rounded half to even; this restores the
    number of zeros that the share was computed from.
    measured: rows of this block, of one epoch and one layout. Rows of the codec add up to the size and take precedence
    over the sparsity; rows of other codecs are ignored.
    window: bytes of a compression window, which determines the rows of CSR; it does not change measured sizes.
    Raises `InputError` for an unknown codec, a sparsity outside 0..1, rows that do not cover the block exactly once,
    and if neither a measured size nor the sparsity is known.

    >>> compressed_bytes(4096, 4, "zvc", 0.5)
    2176
    >>> compressed_bytes(4096, 4, "zlib", 0.5, [CompressedSize("y", 0, "zlib", "nchw", 4096, 1712, 1)])
    1712
    """
    if itemsize not in (1, 2, 4):
        known = "codecs support elements of 1, 2 or 4 bytes"
        raise InputError.single("", "itemsize", f"codecs are not applicable to elements of {itemsize!r} bytes", known)
    if sparsity is not None and not 0 <= sparsity <= 1:  # a NaN is within no bounds
        raise InputError.single("", "sparsity", f"{sparsity!r} is not a share of zeros", "give a number from 0 to 1")
    chosen = codec_class(codec)(window)
    rows = [row for row in measured if row.codec == codec]
    if rows:
        return _measured(block_bytes, rows)
    if codec not in FROM_SPARSITY:
        what = f"the size in {codec} does not follow from the share of zeros"
        remedy = f"give measured sizes (compressibility.csv), or use one of {', '.join(FROM_SPARSITY)}"
        raise InputError.single("", "codec", what, remedy)
    if sparsity is None:
        what = f"neither sparsity nor a measured size in {codec} is known"
        raise InputError.single("", "sparsity", what, "give a trace with sparsity.csv or compressibility.csv")
    elements = -(-block_bytes // itemsize)
    nonzeros = elements - round(elements * Fraction(sparsity))
    if codec == "zvc":
        return zvc_bytes(elements, nonzeros, itemsize)
    return csr_bytes(elements, nonzeros, itemsize, chosen.window)


def _measured(block_bytes: int, rows: list[CompressedSize]) -> int:
    first = rows[0]
    name = f"block '{first.block}'"
    for row in rows:
        if (row.block, row.epoch, row.layout) != (first.block, first.epoch, first.layout):
            what = (
                f"{name}, epoch {first.epoch}, {first.layout}, and block '{row.block}', epoch {row.epoch}, {row.layout}"
            )
            remedy = "give the rows of one block, epoch and layout"
            raise InputError.single(
                "compressibility", first.codec, f"measured sizes of different blocks, epochs or layouts: {what}", remedy
            )
    covered = sum(row.entry_bytes * row.entries for row in rows)
    # A block need not end with an entry: the last one may be padded.
    if not block_bytes <= covered < block_bytes + max(row.entry_bytes for row in rows):
        what = f"the measured entries of {name} cover {covered} bytes, but the block has {block_bytes}"
        raise InputError.single("compressibility", first.codec, what, "give the sizes of all its entries, once each")
    return sum(row.bytes * row.entries for row in rows)
