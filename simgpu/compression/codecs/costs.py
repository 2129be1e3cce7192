"""Costs of encoding a trace's blocks on a node at one epoch of training, as the simulated machine charges them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from simgpu.compression.codecs.registry import codec_class
from simgpu.compression.codecs.sizes import FROM_SPARSITY, compressed_bytes
from simgpu.compression.codecs.zvc import zvc_bytes
from simgpu.errors import InputError
from simgpu.hardware.spec import NodeSpec
from simgpu.trace.epochs import sizes_at, sparsity_at
from simgpu.trace.model import Block, CompressedSize, Origin, Trace
from simgpu.units import ITEMSIZE

if TYPE_CHECKING:
    from simgpu.compression.codecs.gpu.surface import ResponseSurface
    from simgpu.graph.encodings import Encoding


class NodeCosts:
    """Costs of a trace's blocks on a node at an epoch; see `simgpu.graph.encodings.EncodingCosts`.

    Uses the sparsity and measured sizes that apply at the epoch; if several layouts were measured, those of the given
    layout. If the trace or its sparsity is modelled, sizes that do not follow from sparsity are modelled too.

    >>> from dataclasses import replace
    >>> from simgpu.hardware.nodes import load_node
    >>> from simgpu.trace.chain import chain
    >>> from simgpu.trace.model import SparsitySample
    >>> trace = replace(chain([5], [7], [4096]), sparsity=(SparsitySample("x1", 0, 0.5),))
    >>> NodeCosts(trace, load_node("v100")).encoded_bytes(trace.blocks[0], "zvc")
    2176
    """

    def __init__(self, trace: Trace, node: NodeSpec, epoch: int = 0, layout: str = "nchw") -> None:
        self.name = trace.name or trace.info.model
        self.dtype = trace.info.dtype
        self.node = node
        self.layout = layout
        self._has_modelled_zeros = trace.info.origin is Origin.MODELLED or "sparsity" in trace.info.modelled
        self._blocks = trace.block_by_id
        self._zeros = sparsity_at(trace, epoch)
        self._measured: Mapping[str, tuple[CompressedSize, ...]] = {
            block: _of_layout(rows, layout) for block, rows in sizes_at(trace, epoch).items()
        }

    def sparsity(self, block: Block) -> float | None:
        """Share of zeros in a block, as recorded or from its measured size in ZVC; None if neither is known."""
        rows = [row for row in self._measured.get(block.id, ()) if row.codec == "zvc"]
        if block.id in self._zeros or not rows or not block.bytes:
            return self._zeros.get(block.id)
        dense = zvc_bytes(-(-block.bytes // self._itemsize(block)), 0, self._itemsize(block))
        nonzero_bytes = sum(row.bytes * row.entries for row in rows) - dense
        return min(max(1 - nonzero_bytes / block.bytes, 0.0), 1.0)

    def is_known(self, block: Block, codec: str) -> bool:
        """Whether a block's size in a codec is known; codecs support elements of 1, 2 or 4 bytes."""
        if self._itemsize(block) not in (1, 2, 4):
            return False
        known = block.id in self._zeros and codec in FROM_SPARSITY
        return known or self._is_measured(block, codec) or self.is_modelled(block, codec)

    def is_modelled(self, block: Block, codec: str) -> bool:
        """Whether the size of a block in a codec is from the pattern model, because no measured size is known."""
        if not (self._has_modelled_zeros and block.id in self._zeros):
            return False
        from simgpu.compression.codecs.patterns import FORMAT_OF, MODELLED

        fits = codec in MODELLED and self._itemsize(block) in FORMAT_OF
        return fits and not self._is_measured(block, codec)

    @property
    def modelled_codecs(self) -> tuple[str, ...]:
        """The codecs in which the size of some block is modelled."""
        from simgpu.compression.codecs.patterns import MODELLED

        blocks = [self._blocks[name] for name in self._zeros]
        return tuple(codec for codec in MODELLED if any(self.is_modelled(block, codec) for block in blocks))

    def _is_measured(self, block: Block, codec: str) -> bool:
        return any(row.codec == codec for row in self._measured.get(block.id, ()))

    def _itemsize(self, block: Block) -> int:
        return ITEMSIZE.get(block.dtype or self.dtype, 4)

    def encoded_bytes(self, block: Block, codec: str) -> int:
        """Compressed size of a block in a codec, bytes."""
        codec_class(codec)
        if not self.is_known(block, codec):
            what = f"the size of '{block.id}' in {codec} is unknown"
            remedy = "record or model its sparsity (sparsity.csv), or measure its size (compressibility.csv)"
            raise InputError.single(self.name, "sparsity", what, remedy)
        itemsize, zeros = self._itemsize(block), self._zeros.get(block.id)
        if zeros is not None and self.is_modelled(block, codec):
            from simgpu.compression.codecs.patterns import modelled_bytes

            return modelled_bytes(block.bytes, itemsize, block.shape, codec, zeros, self.layout)
        rows = self._measured.get(block.id, ())
        try:
            return compressed_bytes(block.bytes, itemsize, codec, zeros, rows)
        except InputError as error:
            what = f"block '{block.id}' in {codec}: {error.problems[0].what}"
            raise InputError.single(self.name, error.problems[0].place, what, error.problems[0].remedy) from None

    def encode_ns(self, block: Block, encoding: Encoding) -> int:
        """Time to encode a block, ns."""
        return self._ns(block, encoding, decoding=False)

    def decode_ns(self, block: Block, encoding: Encoding) -> int:
        """Time to decode a block, ns."""
        return self._ns(block, encoding, decoding=True)

    def _ns(self, block: Block, encoding: Encoding, *, decoding: bool) -> int:
        if encoding.by == "free" or self.node.gpu.instant_codecs:
            return 0
        if encoding.by == "host":
            return self._on_host_ns(block)
        surface = self._response
        timed = surface.decode_ns if decoding else surface.encode_ns
        sparsity = self.sparsity(block) or 0.0
        return timed(encoding.codec, block.bytes, sparsity, encoding.grid, encoding.threads)

    def _on_host_ns(self, block: Block) -> int:
        rate = self.node.host.codec_bandwidth
        if rate is None:
            what = f"node {self.node.name} does not state its host's encoding bandwidth"
            raise InputError.single("", "node.host.codec_bandwidth", what, "add it, for example '2 GB/s'")
        return -(-block.bytes * 10**9 // rate)

    @cached_property
    def _response(self) -> ResponseSurface:
        from simgpu.compression.codecs.gpu.response import response_of

        return response_of(self.node.gpu)


def _of_layout(rows: tuple[CompressedSize, ...], layout: str) -> tuple[CompressedSize, ...]:
    """For each codec, the rows of the given layout; all rows if only one layout was measured."""
    chosen: list[CompressedSize] = []
    for codec in dict.fromkeys(row.codec for row in rows):
        mine = [row for row in rows if row.codec == codec]
        layouts = {row.layout for row in mine}
        chosen += [row for row in mine if len(layouts) == 1 or row.layout == layout]
    return tuple(chosen)
