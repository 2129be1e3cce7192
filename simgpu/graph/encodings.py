"""Encoded forms of blocks: the output of a codec, as a separate block."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Protocol

from simgpu.trace.model import Block


class Encoder(StrEnum):
    """Who encodes and decodes. `FREE` is an oracle's: on the GPU, in no time (CSWAP, section V)."""

    GPU = "gpu"
    HOST = "host"
    FREE = "free"


class Encoding(NamedTuple):
    """A block, the codec that encodes it, and who runs that codec.

    grid, threads: thread blocks of the GPU's kernels and threads in each; 0 for other encoders.
    """

    block: int
    codec: str
    by: Encoder = Encoder.GPU
    grid: int = 0
    threads: int = 0


class EncodingCosts(Protocol):
    """The true costs of encoding, as the simulator knows them; sizes in bytes, times in nanoseconds.

    Raises `InputError` where a codec is unknown, or the encoded size of a block is.
    """

    def sparsity(self, block: Block) -> float | None:
        """Share of zeros in a block; None where it is not known."""
        ...

    def is_known(self, block: Block, codec: str) -> bool:
        """Whether a block's encoded size in a codec is known."""
        ...

    def encoded_bytes(self, block: Block, codec: str) -> int:
        """Bytes of the encoded form."""
        ...

    def encode_ns(self, block: Block, encoding: Encoding) -> int:
        """Time to encode."""
        ...

    def decode_ns(self, block: Block, encoding: Encoding) -> int:
        """Time to decode."""
        ...


class EncodedForm(NamedTuple):
    """An encoded form in a graph: its block, and the time to encode and to decode it (ns)."""

    block: int
    encode_ns: int
    decode_ns: int
