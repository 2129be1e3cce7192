"""Determines which tensors an operator reads and writes, from its schema and arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from simgpu.trace.operators import purity

#: In-place operators that overwrite every element without reading the old value.
_OVERWRITING = frozenset(
    (
        "zero_",
        "fill_",
        "copy_",
        "normal_",
        "uniform_",
        "random_",
        "bernoulli_",
        "exponential_",
        "log_normal_",
        "cauchy_",
        "geometric_",
    )
)
#: Arguments that batch normalization changes although its schema does not declare it.
_RUNNING_STATISTICS = ("running_mean", "running_var")


@dataclass(slots=True)
class OperandAccess:
    """Tensors of one call, which may share storage. Drop it after the call, because it references their memory.

    read: arguments that are only read.
    overwritten: arguments that are only written.
    changed: arguments that are read and written.
    results: returned tensors, each with its position in the result (tensors of one list share a position).
    """

    read: list[torch.Tensor] = field(default_factory=list)
    overwritten: list[torch.Tensor] = field(default_factory=list)
    changed: list[torch.Tensor] = field(default_factory=list)
    results: list[tuple[int, torch.Tensor]] = field(default_factory=list)

    def of(self, kept: Callable[[torch.Tensor], bool]) -> OperandAccess:
        """Returns the same access, of some of the tensors."""
        return OperandAccess(
            [tensor for tensor in self.read if kept(tensor)],
            [tensor for tensor in self.overwritten if kept(tensor)],
            [tensor for tensor in self.changed if kept(tensor)],
            [(place, tensor) for place, tensor in self.results if kept(tensor)],
        )


def operator_name(func: Any) -> str:
    """Returns the name of an operator without its overload.

    >>> operator_name(torch.ops.aten.add_.Tensor)
    'aten::add_'
    """
    return str(func._schema.name)


def operator_purity(func: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> bool | None:
    """Returns whether running an operator again gives the same values; None for unknown operators outside PyTorch.

    PyTorch tags its own operators that draw random numbers; the others have no state. Fused attention is tagged because
    of its dropout; without dropout, it draws no random numbers.

    >>> operator_purity(torch.ops.aten.bernoulli_.float), operator_purity(torch.ops.aten.gelu.default)
    (False, True)
    """
    draws = torch.Tag.nondeterministic_seeded in func.tags
    if draws and not _is_without_dropout(func, args, kwargs or {}):
        return False
    known = purity(operator_name(func))
    return True if known is None and func.namespace == "aten" else known


def _is_without_dropout(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns whether an operator has a dropout probability, and it is zero."""
    argument = next((argument for argument in func._schema.arguments if argument.name == "dropout_p"), None)
    if argument is None:
        return False
    given = _value_of("dropout_p", func, args, kwargs)
    return bool((argument.default_value if given is None else given) == 0)


def access(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], returned: Any) -> OperandAccess:
    """Returns how a call of `func` accessed the tensors in its arguments and its result.

    An operator that uses only an argument's shape (``zeros_like``, ``new_empty``) does not read it.

    >>> x = torch.ones(2)
    >>> done = access(torch.ops.aten.relu_.default, (x,), {}, x)
    >>> len(done.read), len(done.changed), len(done.results)
    (0, 1, 1)
    """
    name = operator_name(func).partition("::")[2]
    only_shape = name.endswith("_like") or name.startswith("new_")
    done = OperandAccess()
    for argument, value in _named_arguments(func, args, kwargs):
        tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        alias = argument.alias_info
        written = alias is not None and alias.is_write
        if argument.name in _RUNNING_STATISTICS and not written:
            written = bool(_value_of("training", func, args, kwargs))
        if written:
            for tensor in tensors:
                fills = (argument.is_out or name in _OVERWRITING) and _spans_storage(tensor)
                (done.overwritten if fills else done.changed).append(tensor)
        elif not only_shape:
            done.read += tensors
    outputs = returned if len(func._schema.returns) > 1 else (returned,)
    for place, output in enumerate(outputs):
        done.results += [(place, leaf) for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
    return done


def _named_arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    for place, argument in enumerate(func._schema.arguments):
        if place < len(args):
            yield argument, args[place]
        elif argument.name in kwargs:
            yield argument, kwargs[argument.name]


def _value_of(name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return next((value for argument, value in _named_arguments(func, args, kwargs) if argument.name == name), None)


def _spans_storage(tensor: torch.Tensor) -> bool:
    return bool(tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes())
