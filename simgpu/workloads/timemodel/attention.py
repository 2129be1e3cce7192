"""The time of fused attention in half precision: its products on matrix units, then the softmax in single precision.

Flash attention (Dao 2023, arXiv 2307.08691) keeps the scores on the chip. Its time is modelled as

    products / (rate x share) x (1 + a / keys) x idle  +  scores x operations / fp32 rate

- rate: what large half-precision products sustain; share: the fraction of it that the architecture's kernels reach,
  smaller with a causal mask and in memory-efficient attention. With a causal mask, the kernels also compute the masked
  half of the blocks on the diagonal;
- keys: with a window those of a causal mask that keeps as many scores; a: their number at which filling the pipeline
  doubles the time;
- idle: for multiprocessors without a block of rows;
- operations: those of the softmax for each score. So narrow heads, with few products a score, reach a smaller rate.

cuDNN's attention follows the same law, with its share of the matrix units' rate, of which large products sustain less:
on Blackwell it is faster than these, since it overlaps its softmax with products. With a mask that is added to the
scores, it computes all of them; the mask counts as bytes to read. No term stands for adding it: the one published pair
of rates (431 TFLOP/s with a bias, 487 without, forward: pytorch/pytorch issue 138493) was read without shape and GPU.
"""

from __future__ import annotations

from enum import StrEnum
from math import sqrt
from types import MappingProxyType
from typing import TYPE_CHECKING

from simgpu.hardware.spec import GpuSpec
from simgpu.workloads.timemodel.formats import architecture_of
from simgpu.workloads.timemodel.operation import AttentionShape, Direction, GemmShape

if TYPE_CHECKING:
    from simgpu.workloads.timemodel.parameters import Architecture, AttentionTable, Counts, FlashTable, KindShares


class FlashVersion(StrEnum):
    """Kernels of flash attention: versions of the package, of which PyTorch has the second, and cuDNN's."""

    TWO = "2"
    THREE = "3"
    CUDNN = "cudnn"


def without_flash(gpu: GpuSpec, version: FlashVersion, architecture: Architecture | None = None) -> str:
    """Why the GPU does not have this version; empty if it does. architecture: by default the GPU's own.

    >>> from simgpu.hardware.nodes import load_node
    >>> [without_flash(load_node(name).gpu, FlashVersion.THREE) for name in ("l4", "h100")]
    ['L4 (ada) has no FlashAttention-3, which is for Hopper', '']
    """
    architecture = architecture or architecture_of(gpu)
    if version is FlashVersion.TWO or architecture is None:
        return ""
    if version is FlashVersion.CUDNN:
        lacks = architecture.cudnn is None
        return f"{gpu.name} ({gpu.architecture}) has no published rate of cuDNN's attention" if lacks else ""
    if architecture.flash3 is not None:
        return ""
    return f"{gpu.name} ({gpu.architecture}) has no FlashAttention-3, which is for Hopper"


def preferred_kernels(gpu: GpuSpec) -> FlashVersion:
    """The kernels that TransformerEngine 2.11 takes for half precision (``get_attention_backend``): cuDNN's, or flash.

    Those of PyTorch are in the name of its operator.

    >>> from simgpu.hardware.nodes import load_node
    >>> [preferred_kernels(load_node(name).gpu).value for name in ("a100", "h100", "b200")]
    ['2', 'cudnn', 'cudnn']
    """
    return FlashVersion.TWO if without_flash(gpu, FlashVersion.CUDNN) else FlashVersion.CUDNN


#: The widest heads that cuDNN's attention supports, on the architectures on which PyTorch prefers it.
_WIDEST = MappingProxyType({"hopper": 256, "blackwell": 128})
#: Widths of DeepSeek-V3's queries and values, which it also supports on Blackwell.
_OF_DEEPSEEK = (192, 128)


def takes_cudnn(architecture: str | None, width: int, values: int) -> bool:
    """Whether PyTorch 2.13 gives heads of this width, and values of that, to cuDNN's attention on an architecture.

    It prefers it on Hopper and Blackwell if its cuDNN is newer than 9.15 (``check_prefer_cudnn_attention`` of
    ``sdp_utils.cpp``), as the 9.20 is that its wheels ask for. Widths are multiples of 8, up to 256 on Hopper and 128
    on Blackwell, there also those of DeepSeek-V3 (``check_cudnn_tensor_shapes``).

    >>> takes_cudnn("hopper", 256, 256), takes_cudnn("blackwell", 256, 256), takes_cudnn("ampere", 64, 64)
    (True, False, False)
    """
    if width % 8 or values % 8:
        return False
    of_deepseek = architecture == "blackwell" and (width, values) == _OF_DEEPSEEK
    return of_deepseek or max(width, values) <= _WIDEST.get(architecture or "", 0)


#: Rows of scores that one multiprocessor computes at a time (flash-attention, csrc/flash_attn/src, kBlockM).
_ROWS = 128


def fused_seconds(
    shape: AttentionShape,
    direction: Direction,
    rate: float,
    fp32_rate: float,
    multiprocessors: int,
    shares: KindShares,
    table: AttentionTable,
    flash: FlashTable,
) -> float:
    """Seconds of attention's arithmetic in one kernel.

    rate: operations per second of which `shares` are fractions: what large half-precision products sustain or, for
    cuDNN, the matrix units' rate; fp32_rate: peak of single precision.
    shares: the architecture's fractions of `rate`; table: the parameters common to all architectures; flash: those of
    the kernels.

    >>> from simgpu.workloads.timemodel.parameters import load_parameters
    >>> parameters, shape = load_parameters(), AttentionShape(heads=32, rows=8192, keys=8192, width=128, values=128)
    >>> hopper, table = parameters.architectures["hopper"], parameters.attention
    >>> for shares, version in ((hopper.attention, table.flash2), (hopper.flash3, table.flash3)):
    ...     seconds = fused_seconds(shape, Direction.FORWARD, 797.5e12, 66.9e12, 132, shares, table, version)
    ...     round(shape.flops(Direction.FORWARD) / seconds / 1e12)
    369
    639
    """
    forward = direction is Direction.FORWARD

    def of(both: Counts | KindShares) -> float:
        return both.forward if forward else both.backward

    share = of(shares) * (of(flash.causal) if shape.causal else 1) * (of(table.efficient) if shape.efficient else 1)
    blocks = shape.heads * (shape.rows if forward else shape.keys) / _ROWS
    filling = (1 + of(flash.keys) / _keys(shape)) * sqrt(1 + (multiprocessors / blocks) ** 2)
    computed = 1 + _ROWS / shape.most if shape.causal else 1
    products = shape.flops(direction) / (rate * share) * computed * filling
    return products + shape.scores * of(table.softmax) / fp32_rate


def _keys(shape: AttentionShape) -> float:
    """The keys; with a window those of a causal mask without one that keeps as many scores."""
    return shape.keys if shape.window is None else min(shape.keys, 2 * shape.scores / (shape.heads * shape.rows))


def products_of_attention(shape: AttentionShape, direction: Direction) -> tuple[GemmShape, ...]:
    """The products that attention computes without a mask: two, or backward five, which compute the scores again.

    >>> [each.k for each in products_of_attention(AttentionShape(8, 64, 32, 16, 16), Direction.FORWARD)]
    [16, 32]
    """
    heads, rows, keys = shape.heads, shape.rows, shape.keys
    scores = GemmShape(rows, keys, shape.width, heads)
    if direction is Direction.FORWARD:
        return scores, GemmShape(rows, shape.values, keys, heads)
    return (
        scores,
        GemmShape(keys, shape.values, rows, heads),
        GemmShape(rows, keys, shape.values, heads),
        GemmShape(rows, shape.width, keys, heads),
        GemmShape(keys, shape.width, rows, heads),
    )
