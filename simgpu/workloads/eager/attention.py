"""Fused attention as PyTorch 2.13 runs it on CUDA: cuDNN's, flash, or memory-efficient for what these do not support.

The same conditions and results as in the recorder's model of attention. None stores the scores; backward computes
them again. Flash attention supports no mask. cuDNN's attention reads a mask as it is, and autograd saves that;
memory-efficient attention copies one whose rows are not aligned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from simgpu.workloads.eager.autocast import lowered
from simgpu.workloads.eager.pointwise import only
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.strides import Sizes, elementwise_strides
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.timemodel.attention import takes_cudnn
from simgpu.workloads.timemodel.operation import AttentionShape, Direction, Operation, OperationKind

#: Architectures that flash attention supports, with half-precision numbers only.
WITH_FLASH = frozenset(("ampere", "ada", "hopper", "blackwell", "blackwell-rtx", "cdna3"))
_HALF = ("float16", "bfloat16")
#: The widest heads that flash attention supports, and the number that their width is a multiple of without padding.
_WIDEST, _FLASH_WIDTH = 256, 8
#: cuDNN drops multiples of this fraction of the scores' shares.
_DROPOUT = 1 / 16
#: Memory-efficient attention rounds the number of stored sums up to this (``attention.cu``).
_ROWS = 32
#: The rows of a mask are aligned to this many values (``ATen/native/transformers/attention.cpp``).
_MASK_WIDTH = 8


def prefers_cudnn(architecture: str | None, dtype: str, width: int, values: int, dropout: float = 0.0) -> bool:
    """Whether PyTorch 2.13 takes cuDNN's attention for operands of this format, before it asks flash attention.

    width, values: of a head's queries and keys, and of its values. dropout: the rate of the shares that are dropped.
    These are the conditions of ``can_use_cudnn_attention`` (``sdp_utils.cpp``) on what a model's configuration states:
    half precision (``check_dtypes_low_precision``), the widths (`takes_cudnn`) and a rate that is a multiple of 1/16
    (``check_cudnn_dropout``). A mask prevents nothing that the models here do (``check_attn_mask_shape``), nor
    do fewer heads of keys than of queries. The others, on tensors and settings, are the recorder's.

    >>> [prefers_cudnn("hopper", "bfloat16", 64, 64, rate) for rate in (0.0, 0.1, 0.5)]
    [True, False, True]
    """
    return dtype in _HALF and takes_cudnn(architecture, width, values) and (dropout / _DROPOUT).is_integer()


def fused_kernel(
    architecture: str | None,
    dtype: str,
    width: int,
    *,
    masked: bool = False,
    values: int | None = None,
    dropout: float = 0.0,
    cudnn: bool = True,
) -> str | None:
    """The fused operator for attention, ``cudnn``, ``flash`` or ``efficient``; None if there is none.

    width: of a head. masked: whether a mask is added to the scores. values: width of a head's values, by default that
    of queries and keys; flash attention supports no other. dropout: rate of attention's dropout. cudnn: whether
    it may be cuDNN's, which the package flash-attn and earlier versions of PyTorch do not take.

    >>> [fused_kernel("hopper", "bfloat16", 128, dropout=rate) for rate in (0.0, 0.1)]
    ['cudnn', 'flash']
    >>> [fused_kernel(each, "bfloat16", 128, masked=True) for each in ("hopper", "ada")]
    ['cudnn', 'efficient']
    >>> fused_kernel("volta", "bfloat16", 64) is None
    True
    """
    has_flash, values = architecture in WITH_FLASH, width if values is None else values
    if cudnn and prefers_cudnn(architecture, dtype, width, values, dropout):
        return "cudnn"
    supports_width = width == values <= _WIDEST and not width % _FLASH_WIDTH
    if has_flash and not masked and dtype in _HALF and supports_width:
        return "flash"
    on_tensor_cores = has_flash or (architecture in ("volta", "turing") and dtype in _HALF)
    step = (128 // (16 if dtype in _HALF else 32)) if on_tensor_cores else 1
    if width % step or values % step or (dtype == "bfloat16" and not has_flash):
        return None
    return "efficient"


def attention(
    session: Session,
    kind: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float,
    mask: Tensor | None = None,
    *,
    causal: bool = True,
    window: int | None = None,
    columns_of: Tensor | None = None,
) -> Tensor:
    """Attention of (batch, heads, tokens, width) tensors; keys may have other tokens.

    Keys and values may have fewer heads, but for memory-efficient attention, and values another width, which is then
    the result's.

    kind: a result of `fused_kernel`. mask: (batch, 1, tokens, tokens), added to the scores.
    causal: whether a token attends only to itself and those before it; a mask decides it instead. window: the number of
    those before it; None for all.
    columns_of: the matrix of which queries, keys and values are columns, whose gradient backward writes as one; None
        for a gradient of each.
    """
    query, key, value, *masks = lowered(session, query, key, value, *(() if mask is None else (mask,)))
    op = f"_scaled_dot_product_{kind}_attention"
    inputs = (query, key, value)
    batch, heads, tokens, _ = query.shape
    shape: Sizes = (*query.shape[:-1], value.shape[-1])
    sums: Sizes = (tokens,)
    seed: tuple[Sizes, str] = ((), "int64")
    bias = masks
    match kind:
        case "flash":
            seed = (2,), "uint64"
        case "cudnn":
            sums = tokens, 1
        case "efficient":
            needs_sums = any(x.node is not None for x in inputs)  # for backward (``compute_log_sumexp``)
            sums = (ceil(tokens / _ROWS) * _ROWS if needs_sums else 0,)
            bias = [_aligned(session, each, heads) for each in masks]
    strides = _strides(kind, query, shape)
    results = ((shape, query.dtype), ((batch, heads, *sums), "float32"), seed, ((), seed[1]))
    scores = replace(_shape(kind, *inputs), causal=causal and mask is None, window=window)
    work = _work(scores, inputs, bias, Direction.FORWARD)
    created = session.run(op, (*inputs, *bias), results, strides=strides, operations=work, pure=not dropout)
    followed = inputs if columns_of is None else (columns_of,)

    def backward(grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        grad = only(grads)
        reads = (grad, *inputs, *bias, *created)
        shapes = [(x.shape, x.dtype) for x in followed]
        work = _work(scores, inputs, bias, Direction.BACKWARD_DATA)
        gradients = session.run(f"{op}_backward", reads, shapes, operations=work)
        if columns_of is None:
            for each, x in zip(gradients, inputs, strict=True):
                each.strides = _strides(kind, x, x.shape)
        return gradients

    session.record(created[:1], followed, backward, (*inputs, *bias, *created))
    return created[0]


def _aligned(session: Session, mask: Tensor, heads: int) -> Tensor:
    """The mask repeated for all heads; a padded copy if its rows are not aligned (``preprocess_mask``)."""
    batch, _, tokens, columns = mask.shape
    if any(stride % _MASK_WIDTH for stride in mask.strides[:-1]):
        padded = columns + _MASK_WIDTH - columns % _MASK_WIDTH
        (mask,) = session.run("constant_pad_nd", (mask,), (((batch, 1, tokens, padded), mask.dtype),))
    first, _, row, _ = mask.strides
    return mask.seen((batch, heads, tokens, columns), (first, 0, row, 1))


def _strides(kind: str, x: Tensor, shape: Sizes) -> Sizes:
    """Those of a result or gradient of this shape: in the operand's order, or (batch, tokens, heads, width)."""
    if kind != "efficient":
        return elementwise_strides(shape, [(shape, x.strides)])
    _, heads, tokens, width = shape
    return heads * tokens * width, width, heads * width, 1


def _shape(kind: str, query: Tensor, key: Tensor, value: Tensor) -> AttentionShape:
    batch, heads, tokens, width = query.shape
    return AttentionShape(
        heads=batch * heads,
        rows=tokens,
        keys=key.shape[2],
        width=width,
        values=value.shape[3],
        efficient=kind == "efficient",
        cudnn=kind == "cudnn",
    )


def _work(
    shape: AttentionShape, inputs: tuple[Tensor, Tensor, Tensor], bias: Sequence[Tensor], direction: Direction
) -> tuple[Operation, ...]:
    """One operation without memory traffic for scores; backward reads operands, result and its gradient, and writes the
    operands' gradients. Forward reads the mask, and cuDNN's backward does."""
    query, key, value = inputs
    result = query.bytes // query.shape[-1] * value.shape[-1]
    moved = query.bytes + result + key.bytes + value.bytes
    moved = moved if direction is Direction.FORWARD else 2 * moved
    if shape.cudnn or direction is Direction.FORWARD:
        moved += sum(x.bytes for x in bias)
    flops = shape.flops(direction)
    written = query.count // shape.width * shape.values if direction is Direction.FORWARD else query.count
    work = Operation(OperationKind.ATTENTION, flops, moved, written, direction, dtype=query.dtype, attention=shape)
    return (work,)
