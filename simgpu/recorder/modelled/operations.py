"""From an operator's call to the work it means: what the time model prices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from simgpu.recorder.modelled.products import PRODUCTS, arguments
from simgpu.recorder.operators import Access, access, operator_name
from simgpu.workloads.timemodel.kinds import listed_kind
from simgpu.workloads.timemodel.operation import Operation, OperationKind

#: They ask for memory, or look at something that is no value: nothing runs on the device.
_NO_WORK = frozenset(
    ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh", "resize_", "set_")
)
#: Operators that are given a tensor for its shape alone, as their first argument, or pick a few values of it.
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
#: Operations for each value of the largest operand or result. What is not a product takes as long as its memory does,
#: so this is only the order of magnitude: an exponential, or a mean, a variance and a scaling, count as eight.
_PER_VALUE = {OperationKind.SOFTMAX: 8, OperationKind.NORMALIZATION: 8, OperationKind.COPY: 0, OperationKind.GATHER: 0}


class Work(NamedTuple):
    """What one call of an operator does: operations that run one after another; none where nothing runs.

    is_known: whether the operator has a kind here; one without is taken to go over its operands value by value.
    """

    operations: tuple[Operation, ...]
    is_known: bool = True


def work_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], returned: Any) -> Work:
    """The work of a call, from its arguments and its result.

    All that is not a convolution comes in direction forward; an operator does not know what it is called for.

    >>> x = torch.ones(2, 3)
    >>> work_of(torch.ops.aten.relu.default, (x,), {}, x.relu()).operations
    (Operation(kind=<OperationKind.ELEMENTWISE: 'elementwise'>, flops=6, bytes=48, results=6, ...),)
    """
    name = operator_name(func).removeprefix("aten::")
    if name in _NO_WORK or func.namespace == "profiler":
        return Work(())
    if name in PRODUCTS:
        return Work(PRODUCTS[name](func, args, kwargs, returned))
    kind = _kind(func, name)
    done = access(func, args, kwargs, returned)
    if name in _HARDLY_READ:
        shaped = arguments(func, args, kwargs)["self"]
        done.read = [tensor for tensor in done.read if tensor is not shaped]
    if done.results and not done.overwritten and not done.changed and not _new_results(done):
        return Work(())  # a view
    known = kind is not None
    if kind is OperationKind.GATHER:
        return Work((_gathered(done),), known)
    return Work((_plain(kind or OperationKind.ELEMENTWISE, done),), known)


def _kind(func: Any, name: str) -> OperationKind | None:
    listed = listed_kind(name)
    if listed is not None:
        return listed
    pointwise = torch.Tag.pointwise in func.tags or name.startswith("_foreach_")
    return OperationKind.ELEMENTWISE if pointwise else None


def _plain(kind: OperationKind, done: Access) -> Operation:
    """Every operand read once and every result written once; a result that is an operand is changed in place."""
    read = _distinct(done.read + done.changed)
    written = _distinct(done.overwritten + done.changed) | _new_results(done)
    if kind is OperationKind.COPY and not done.changed:
        # Where sizes differ (a padding, a slice put back), only the smaller one's values are looked at.
        values = sum(values for values, _ in written.values())
        bytes_ = sum(min(size, values * size // count) for count, size in read.values() if count) + _bytes(written)
    else:
        bytes_ = _bytes(read) + _bytes(written)
    largest = max((values for values, _ in (*read.values(), *written.values())), default=0)
    results = sum(values for values, _ in written.values())
    return Operation(kind, _PER_VALUE.get(kind, 1) * largest, bytes_, results, dtype=_dtype(done))


def _gathered(done: Access) -> Operation:
    """Rows picked from a table or added into one: of the table only what is picked is read, a result is made whole."""
    read = _distinct(done.read)
    written = _distinct(done.overwritten + done.changed) | _new_results(done)
    results = sum(values for values, _ in written.values())
    largest = max((size for _, size in read.values()), default=0)
    picked = min(largest, _bytes(written))
    return Operation(
        OperationKind.GATHER, 0, _bytes(read) - largest + picked + _bytes(written), results, dtype=_dtype(done)
    )


def _new_results(done: Access) -> dict[object, tuple[int, int]]:
    there = {_storage(tensor) for tensor in (*done.read, *done.overwritten, *done.changed)}
    return _distinct(tensor for _, tensor in done.results if _storage(tensor) not in there)


def _distinct(tensors: Iterable[torch.Tensor]) -> dict[object, tuple[int, int]]:
    """Number of values and bytes of each piece of memory looked at; a side that is only repeated counts once."""
    pieces: dict[object, tuple[int, int]] = {}
    for tensor in tensors:
        values = 1
        for side, stride in zip(tensor.shape, tensor.stride(), strict=True):
            values *= side if stride else min(side, 1)
        key = (_storage(tensor), tensor.storage_offset(), values, tensor.dtype)
        pieces[key] = (values, values * tensor.element_size())
    return pieces


def _bytes(pieces: dict[object, tuple[int, int]]) -> int:
    return sum(size for _, size in pieces.values())


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _dtype(done: Access) -> str:
    """Of the first result with a fraction, else of the first tensor there is."""
    tensors = [tensor for _, tensor in done.results] + done.changed + done.overwritten + done.read
    floating = [tensor.dtype for tensor in tensors if tensor.is_floating_point()]
    found = floating or [tensor.dtype for tensor in tensors]
    return str(found[0]).removeprefix("torch.") if found else "float32"
