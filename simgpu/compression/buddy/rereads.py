"""How often a convolution reads its input from device memory: DeLTA (Lym et al., ISPASS 2019), on traffic of DRAM.

A convolution is a product of matrices in tiles, here of 128 results by up to 128 channels. Tiles of one column, with
the same channels, run one after the other over all positions, and in the meantime the L2 cache loses the input: each
column reads all of it again. Filters are read once. The gradient of the input is the same with the channels exchanged.
All tiles of a weight gradient run at the same time over the same positions, so that its inputs are read once. Inputs
that fit the L2 cache, as of a batch of one, are not distinguished.
"""

from __future__ import annotations

from simgpu.graph.taskgraph import TaskGraph
from simgpu.trace.model import Block, BlockKind, Kernel
from simgpu.trace.operators import OpClass, op_class

#: Channels of a tile: the least that holds all channels of the result, else the largest.
_TILES = (32, 64, 128)


def rereads(graph: TaskGraph, kernel: Kernel) -> dict[int, int]:
    """The blocks that a kernel reads several times, and how often; empty but for convolutions of known shape."""
    if op_class(kernel.op) is not OpClass.CONVOLUTION:
        return {}
    reads, writes = (_with_channels(graph, names) for names in (kernel.reads, kernel.writes))
    filters = [block for block in reads if block.kind is BlockKind.WEIGHT]
    maps = [block for block in reads if block.kind is not BlockKind.WEIGHT]
    results = [block for block in writes if block.kind is not BlockKind.WEIGHT_GRADIENT]
    if not (len(filters) == len(maps) == len(results) == 1):
        return {}
    weights, source, result = (block.shape or () for block in (*filters, *maps, *results))
    # A filter has the channels of one group of the forward input, which a data gradient writes.
    forward_input = source if weights[0] == result[1] else result
    times = columns(result[1], max(forward_input[1] // max(weights[1], 1), 1))
    return {graph.block_number[maps[0].id]: times} if times > 1 else {}


def columns(channels: int, groups: int = 1) -> int:
    """Columns of tiles for so many channels of the result.

    >>> columns(384, groups=2), columns(64), columns(512)
    (2, 1, 4)
    """
    own = channels // groups
    width = next((width for width in _TILES if own <= width), _TILES[-1])
    return -(-own // width)


def _with_channels(graph: TaskGraph, names: tuple[str, ...]) -> list[Block]:
    blocks = (graph.blocks[graph.block_number[name]] for name in dict.fromkeys(names))
    return [block for block in blocks if len(block.shape or ()) == 4]
