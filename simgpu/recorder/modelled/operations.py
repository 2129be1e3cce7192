"""Converts operator calls to operations for the time model: products with their shapes, others with their bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from simgpu.recorder.operators import OperandAccess, access, operator_name
from simgpu.workloads.timemodel.kinds import listed_kind
from simgpu.workloads.timemodel.operation import (
    AttentionShape,
    ConvolutionShape,
    Direction,
    GemmShape,
    Operation,
    OperationKind,
    is_aligned,
)

#: They only allocate memory or access metadata: nothing runs on the device.
_NO_WORK = frozenset(
    ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh", "resize_", "set_")
)
#: Operators that use only the shape, or a few values, of their first argument.
_HARDLY_READ = frozenset(
    (
        "max_pool2d_with_indices_backward",
        "max_pool3d_with_indices_backward",
        "avg_pool2d_backward",
        "avg_pool3d_backward",
        "_adaptive_avg_pool2d_backward",
        "_adaptive_avg_pool3d_backward",
        "adaptive_max_pool2d_backward",
        "adaptive_max_pool3d_backward",
        "nll_loss_forward",
        "nll_loss2d_forward",
        "nll_loss_backward",
        "nll_loss2d_backward",
    )
)
#: Operations per value of the largest operand or result. All but products are limited by memory, so the order of
#: magnitude is enough: an exponential, or a mean, a variance and a scaling, count as eight.
_PER_VALUE = {OperationKind.SOFTMAX: 8, OperationKind.NORMALIZATION: 8, OperationKind.COPY: 0, OperationKind.GATHER: 0}


class OperatorWork(NamedTuple):
    """The operations of one operator call, which run in sequence; empty if nothing runs.

    is_known: whether the operator's kind is known; an unknown operator is modelled as elementwise.
    """

    operations: tuple[Operation, ...]
    is_known: bool = True


def work_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], returned: Any) -> OperatorWork:
    """Returns the work of a call, from its arguments and its result.

    All operations except convolutions and fused attention's backward have direction forward: the call does not show it.

    >>> x = torch.ones(2, 3)
    >>> work_of(torch.ops.aten.relu.default, (x,), {}, x.relu()).operations
    (Operation(kind=<OperationKind.ELEMENTWISE: 'elementwise'>, flops=6, bytes=48, results=6, ...),)
    """
    name = operator_name(func).removeprefix("aten::")
    if name in _NO_WORK or func.namespace == "profiler":
        return OperatorWork(())
    if name in PRODUCTS:
        return OperatorWork(PRODUCTS[name](func, args, kwargs, returned))
    kind = _kind(func, name)
    done = access(func, args, kwargs, returned)
    if name in _HARDLY_READ:
        shaped = arguments(func, args, kwargs)["self"]
        done.read = [tensor for tensor in done.read if tensor is not shaped]
    if done.results and not done.overwritten and not done.changed and not _new_results(done):
        return OperatorWork(())  # a view
    known = kind is not None
    if name == "index_put" and torch._C._current_autograd_node() is not None:
        return OperatorWork((_added(done, arguments(func, args, kwargs)),), known)
    if kind is OperationKind.GATHER:
        return OperatorWork((_gathered(done),), known)
    return OperatorWork((_plain(kind or OperationKind.ELEMENTWISE, done),), known)


def _kind(func: Any, name: str) -> OperationKind | None:
    listed = listed_kind(name.rpartition("::")[2])
    if listed is not None:
        return listed
    pointwise = torch.Tag.pointwise in func.tags or name.startswith("_foreach_")
    return OperationKind.ELEMENTWISE if pointwise else None


def _plain(kind: OperationKind, done: OperandAccess) -> Operation:
    """Returns an operation that reads every operand once and writes every result once, possibly in place."""
    read = _distinct(done.read + done.changed)
    written = _distinct(done.overwritten + done.changed) | _new_results(done)
    if kind is OperationKind.COPY and not done.changed:
        # If sizes differ (padding, writing back a slice), only the values of the smaller one are read.
        values = sum(values for values, _ in written.values())
        bytes_ = sum(min(size, values * size // count) for count, size in read.values() if count) + _all_bytes(written)
    else:
        bytes_ = _all_bytes(read) + _all_bytes(written)
    largest = max((values for values, _ in (*read.values(), *written.values())), default=0)
    results = sum(values for values, _ in written.values())
    return Operation(kind, _PER_VALUE.get(kind, 1) * largest, bytes_, results, dtype=_main_dtype(done))


def _gathered(done: OperandAccess) -> Operation:
    """Returns an operation that gathers or adds to rows of a table: it reads only these, and writes all results."""
    read = _distinct(done.read)
    written = _distinct(done.overwritten + done.changed) | _new_results(done)
    results = sum(values for values, _ in written.values())
    largest = max((size for _, size in read.values()), default=0)
    picked = min(largest, _all_bytes(written))
    return Operation(
        OperationKind.GATHER,
        0,
        _all_bytes(read) - largest + picked + _all_bytes(written),
        results,
        dtype=_main_dtype(done),
    )


def _added(done: OperandAccess, given: Mapping[str, Any]) -> Operation:
    """Returns the operation of the backward of an index, which is in place but while operators are intercepted.

    It adds values to a part of zeros, whose other values are not touched (``index_put_with_sort_kernel`` in PyTorch's
    ``ATen/native/cuda/Indexing.cu``).
    """
    read = _distinct(tensor for tensor in done.read if tensor is not given["self"])
    added = _distinct([given["values"]])
    results = sum(values for values, _ in added.values())
    return Operation(
        OperationKind.GATHER, 0, _all_bytes(read) + 2 * _all_bytes(added), results, dtype=_main_dtype(done)
    )


def _new_results(done: OperandAccess) -> dict[object, tuple[int, int]]:
    operands = {_storage(tensor) for tensor in (*done.read, *done.overwritten, *done.changed)}
    return _distinct(tensor for _, tensor in done.results if _storage(tensor) not in operands)


def _distinct(tensors: Iterable[torch.Tensor]) -> dict[object, tuple[int, int]]:
    """Returns (number of values, bytes) of each distinct piece of memory; an expanded dimension counts once."""
    pieces: dict[object, tuple[int, int]] = {}
    for tensor in tensors:
        values = 1
        for side, stride in zip(tensor.shape, tensor.stride(), strict=True):
            values *= side if stride else min(side, 1)
        key = (_storage(tensor), tensor.storage_offset(), values, tensor.dtype)
        pieces[key] = (values, values * tensor.element_size())
    return pieces


def _all_bytes(pieces: dict[object, tuple[int, int]]) -> int:
    return sum(size for _, size in pieces.values())


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _main_dtype(done: OperandAccess) -> str:
    """Returns the data type of the first floating-point tensor, results first; else that of the first tensor."""
    tensors = [tensor for _, tensor in done.results] + done.changed + done.overwritten + done.read
    floating = [tensor.dtype for tensor in tensors if tensor.is_floating_point()]
    result = floating or [tensor.dtype for tensor in tensors]
    return str(result[0]).removeprefix("torch.") if result else "float32"


_FORWARD, _DATA, _WEIGHTS = Direction.FORWARD, Direction.BACKWARD_DATA, Direction.BACKWARD_WEIGHTS
#: A transposed convolution in the key's direction computes what a plain convolution computes in the value's direction.
_UNDONE = {_FORWARD: _DATA, _DATA: _FORWARD, _WEIGHTS: _WEIGHTS}


def arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns every argument by name, with defaults."""
    names = [argument.name for argument in func._schema.arguments]
    defaults = {argument.name: argument.default_value for argument in func._schema.arguments}
    return defaults | dict(zip(names, args, strict=False)) | dict(kwargs)


def tensor_bytes(*tensors: torch.Tensor | None) -> int:
    """Returns the bytes of all values of some tensors, as if none shared memory."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _convolution(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], returned: Any) -> tuple[Operation, ...]:
    given = arguments(func, args, kwargs)
    x, weight, y = given["input"], given["weight"], returned
    work = _direction(given, x, weight, y, _FORWARD, tensor_bytes(x, weight, given["bias"], y), y)
    if given["bias"] is None or work.kind is not OperationKind.CONVOLUTION:
        return (work,)
    return (replace(work, added_bytes=2 * tensor_bytes(y) + tensor_bytes(given["bias"])),)


def _convolution_backward(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], returned: Any
) -> tuple[Operation, ...]:
    """Returns one operation per requested gradient: of the data, of the weights, and of the bias (a sum)."""
    given = arguments(func, args, kwargs)
    grad, x, weight = given["grad_output"], given["input"], given["weight"]
    dx, dweight, dbias = returned
    work = []
    if dx is not None:
        work.append(_direction(given, x, weight, grad, _DATA, tensor_bytes(grad, weight, dx), dx))
    if dweight is not None:
        work.append(_direction(given, x, weight, grad, _WEIGHTS, tensor_bytes(grad, x, dweight), dweight))
    if dbias is not None:
        bytes_ = tensor_bytes(grad, dbias)
        work.append(Operation(OperationKind.REDUCTION, grad.numel(), bytes_, dbias.numel(), _DATA, dtype=_dtype(grad)))
    return tuple(work)


def _direction(
    given: dict[str, Any],
    x: torch.Tensor,
    weight: torch.Tensor,
    y: torch.Tensor,
    way: Direction,
    bytes_: int,
    result: torch.Tensor,
) -> Operation:
    """Returns the operation of one direction; y has the forward result's shape. 3-d convolutions become products."""
    sides, groups, transposed = weight.dim() - 2, given["groups"], given["transposed"]
    wide, narrow = (y, x) if transposed else (x, y)
    direction = _UNDONE[way] if transposed else way
    common: dict[str, Any] = {"results": result.numel(), "direction": direction, "dtype": _dtype(x)}
    if sides > 2:
        rows, columns = narrow.shape[0] * prod(narrow.shape[2:]), narrow.shape[1] // groups
        depth = wide.shape[1] // groups * prod(weight.shape[2:])
        if direction is _DATA:
            columns, depth = depth, columns
        elif direction is _WEIGHTS:
            rows, depth = depth, rows
        gemm = GemmShape(rows, columns, depth, groups)
        return Operation(OperationKind.GEMM, 2 * gemm.macs, bytes_, gemm=gemm, **common)

    def pair(values: Sequence[int], missing: int) -> tuple[int, int]:
        both = [missing] * (2 - sides) + list(values if len(values) == sides else list(values) * sides)
        return both[0], both[1]

    shape = ConvolutionShape(
        wide.shape[0],
        wide.shape[1],
        pair(wide.shape[2:], 1),
        narrow.shape[1],
        pair(weight.shape[2:], 1),
        pair(given["stride"], 1),
        pair(given["padding"], 0),
        pair(given["dilation"], 1),
        groups,
    )
    return Operation(shape.kind, 2 * shape.macs, bytes_, convolution=shape, **common)


def _product(first: str, second: str) -> Callable[..., tuple[Operation, ...]]:
    """Returns the work function of an operator that multiplies the named arguments: vectors, matrices or batches."""

    def work(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], returned: Any) -> tuple[Operation, ...]:
        given = arguments(func, args, kwargs)
        a, b = given[first], given[second]
        rows = a.shape[-2] if a.dim() > 1 else 1
        columns = b.shape[-1] if b.dim() > 1 else 1
        count = a.shape[0] if a.dim() > 2 else 1
        added = given.get("self") if first != "self" else None
        bytes_ = tensor_bytes(a, b, returned, None if added is returned else added)
        matrices = ((x.shape, x.stride()) for x in (a, b, returned))
        shape = GemmShape(rows, columns, a.shape[-1], count, is_aligned(matrices, a.element_size()))
        return (_gemm(shape, bytes_, returned, a),)

    return work


def _linear(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], returned: Any) -> tuple[Operation, ...]:
    given = arguments(func, args, kwargs)
    x, weight = given["input"], given["weight"]
    matrices = ((each.shape, each.stride()) for each in (x, weight, returned))
    aligned = is_aligned(matrices, x.element_size())
    shape = GemmShape(prod(x.shape[:-1]), weight.shape[0], weight.shape[1], aligned=aligned)
    return (_gemm(shape, tensor_bytes(x, weight, given["bias"], returned), returned, x),)


def _gemm(
    shape: GemmShape, bytes_: int, result: torch.Tensor, operand: torch.Tensor, direction: Direction = _FORWARD
) -> Operation:
    """Returns a product in the format of its operands; its result may have another format."""
    return Operation(
        OperationKind.GEMM, 2 * shape.macs, bytes_, result.numel(), direction, gemm=shape, dtype=_dtype(operand)
    )


def _attention(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], returned: Any) -> tuple[Operation, ...]:
    """Returns one operation without memory traffic for scores."""
    given = arguments(func, args, kwargs)
    query, key, value, result = given["query"], given["key"], given["value"], returned[0]
    mask = given.get("attn_bias") if given.get("attn_bias") is not None else given.get("attn_mask")
    return (_fused(func, given, tensor_bytes(query, key, value, mask, result), result, _FORWARD),)


def _attention_backward(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], returned: Any
) -> tuple[Operation, ...]:
    """Returns one operation, which reads operands, result and its gradient, and writes the operands' gradients.

    cuDNN's also reads the mask."""
    given = arguments(func, args, kwargs)
    query, key, value = given["query"], given["key"], given["value"]
    grad = given["grad_out_"] if "grad_out_" in given else given["grad_out"]
    mask = given["attn_bias"] if "cudnn" in operator_name(func) else None
    return (_fused(func, given, 2 * tensor_bytes(query, key, value, grad) + tensor_bytes(mask), query, _DATA),)


def _fused(func: Any, given: Mapping[str, Any], bytes_: int, result: torch.Tensor, direction: Direction) -> Operation:
    query, key, value = given["query"], given["key"], given["value"]
    shape = AttentionShape(
        heads=prod(query.shape[:-2]),
        rows=query.shape[-2],
        keys=key.shape[-2],
        width=query.shape[-1],
        values=value.shape[-1],
        causal=bool(given["is_causal"]),
        efficient="efficient" in operator_name(func),
        cudnn="cudnn" in operator_name(func),
    )
    flops, kind = shape.flops(direction), OperationKind.ATTENTION
    return Operation(kind, flops, bytes_, result.numel(), direction, dtype=_dtype(query), attention=shape)


_ATTENTION = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)

#: Functions (operator, arguments, keyword arguments, result) -> operations, by the operator's name.
PRODUCTS: Mapping[str, Callable[[Any, tuple[Any, ...], dict[str, Any], Any], tuple[Operation, ...]]] = MappingProxyType(
    {
        "convolution": _convolution,
        "convolution_backward": _convolution_backward,
        "linear": _linear,
        "mm": _product("self", "mat2"),
        "_scaled_mm": _product("self", "mat2"),
        "bmm": _product("self", "mat2"),
        "addmm": _product("mat1", "mat2"),
        "addmm_": _product("mat1", "mat2"),
        "_addmm_activation": _product("mat1", "mat2"),
        "baddbmm": _product("batch1", "batch2"),
        "baddbmm_": _product("batch1", "batch2"),
        "mv": _product("self", "vec"),
        "dot": _product("self", "tensor"),
        "addmv": _product("mat", "vec"),
        **dict.fromkeys(_ATTENTION, _attention),
        **{f"{name}_backward": _attention_backward for name in _ATTENTION},
    }
)
