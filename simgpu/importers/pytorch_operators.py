"""Interprets the names of PyTorch operators and annotations; shared by all formats that contain them."""

from __future__ import annotations

from collections.abc import Iterable

from simgpu.trace.columns import LARGEST
from simgpu.trace.operators import purity

_ENGINE = "autograd::engine::evaluate_function"
_OPTIMIZER = ("Optimizer.step", "Optimizer.zero_grad")

#: Position of the data argument, for operators whose data has the samples as its first dimension.
_DATA_ARGUMENT = {
    **dict.fromkeys(("aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::linear", "aten::batch_norm"), 0),
    **dict.fromkeys(("aten::layer_norm", "aten::max_pool2d", "aten::relu", "aten::relu_", "aten::flatten"), 0),
    "aten::embedding": 1,
}


def is_optimizer(name: str) -> bool:
    """Whether a name is the annotation of an optimizer's step or zero_grad.

    >>> is_optimizer("Optimizer.step#Adam.step")
    True
    """
    return name.startswith(_OPTIMIZER)


def is_autograd_node(name: str) -> bool:
    """Whether a name is autograd's engine running a node of its graph.

    >>> is_autograd_node("autograd::engine::evaluate_function: AddmmBackward0")
    True
    """
    return name.startswith(_ENGINE)


def innermost_purity(names: Iterable[str]) -> bool | None:
    """Purity of the innermost operator with known purity, because a part of a pure operator is pure as well.

    names: innermost first. None if no purity is known.

    >>> innermost_purity(["a kernel", "aten::relu", "aten::dropout"])
    True
    """
    purities = map(purity, names)
    return next((is_pure for is_pure in purities if is_pure is not None), None)


def samples(name: str, dims: object) -> int | None:
    """Samples in the data argument of an operator; None if it has no such argument or shape.

    dims: shapes of the operator's arguments.

    >>> samples("aten::conv2d", [[128, 3, 224, 224], [64, 3, 3, 3]])
    128
    """
    place = _DATA_ARGUMENT.get(name)
    if place is None or not isinstance(dims, list) or len(dims) <= place:
        return None
    shape = dims[place]
    is_shape = isinstance(shape, list) and shape and type(shape[0]) is int and 0 < shape[0] <= LARGEST
    return shape[0] if is_shape else None
