"""A graph of forward or backward as kernels on memory, and when PyTorch's code for the graph drops what it uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import fx

from simgpu.recorder.operators import access, operator_name


class Call(NamedTuple):
    """A node that is a kernel. reads, writes: the memory that it accesses, by the node that made it."""

    node: str
    op: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass
class Graph:
    """A graph as calls on memory.

    calls: its kernels, in order. last: by memory, the position of the last kernel that uses it in any view; -1 for what
    no kernel uses. results: the memory of each result, None where it is no tensor. root: by node, its memory.
    """

    calls: list[Call] = field(default_factory=list)
    last: dict[str, int] = field(default_factory=dict)
    results: list[str | None] = field(default_factory=list)
    root: dict[str, str] = field(default_factory=dict)

    @cached_property
    def place(self) -> dict[str, int]:
        """The position of each kernel, by its node."""
        return {call.node: place for place, call in enumerate(self.calls)}


def graph_of(module: fx.GraphModule, given: Mapping[str, str] | None = None) -> Graph:
    """The calls of a graph. Memory is named after the node that makes it, with a number where it makes several.

    given: of nodes that another graph ran, the memory there; a graph that is given views of one memory shares it.
    """
    known = given or {}
    result = Graph()
    parts: dict[str, tuple[str | None, ...]] = {}
    for node in module.graph.nodes:
        if node.op == "output":
            outputs = node.args[0]
            result.results = [result.root.get(each.name) if isinstance(each, fx.Node) else None for each in outputs]
        elif node.op in ("placeholder", "get_attr"):
            if isinstance(node.meta.get("val"), torch.Tensor):
                result.root[node.name] = known.get(node.name, node.name)
        elif node.target.__name__ == "getitem":
            made = parts[node.args[0].name][node.args[1]]
            if made is not None:
                result.root[node.name] = made
        else:
            _add(result, node, parts)
        for used in node.all_input_nodes:
            _use(result, used, parts)
    return result


def _add(result: Graph, node: fx.Node, parts: dict[str, tuple[str | None, ...]]) -> None:
    value = node.meta["val"]
    values = value if isinstance(value, (tuple, list)) else (value,)
    given = {_storage(each.meta["val"]): result.root[each.name] for each in node.all_input_nodes if _is_tensor(each)}
    done = access(node.target, *_values(node), value)
    made: list[str | None] = []
    new: list[str] = []
    for place, each in enumerate(values):
        if not isinstance(each, torch.Tensor) or not each.untyped_storage().nbytes():
            made.append(None)
            continue
        own = node.name if len(values) == 1 else f"{node.name}.{place}"
        made.append(_viewed(node, result) or given.setdefault(_storage(each), own))
        new += [own] if made[-1] == own else []
    parts[node.name] = tuple(made)
    if made and made[0] is not None and len(values) == 1:
        result.root[node.name] = made[0]
    changed = [given[_storage(each)] for each in (*done.overwritten, *done.changed) if _storage(each) in given]
    if changed or new:
        read = [given[_storage(each)] for each in (*done.read, *done.changed) if each.untyped_storage().nbytes()]
        writes = tuple(dict.fromkeys([*changed, *new]))
        result.calls.append(Call(node.name, operator_name(node.target), tuple(dict.fromkeys(read)), writes))
        result.last.update(dict.fromkeys(new, len(result.calls) - 1))


def _use(result: Graph, used: fx.Node, parts: Mapping[str, tuple[str | None, ...]]) -> None:
    """Notes that the node which has just been added uses another one."""
    roots = [result.root[used.name]] if used.name in result.root else parts.get(used.name, ())
    for root in roots:
        if root is not None:
            result.last[root] = max(result.last.get(root, -1), len(result.calls) - 1)


def _viewed(node: fx.Node, result: Graph) -> str | None:
    """The memory that an operator makes a view of. Storages do not show it: TorchInductor replaces some operators."""
    returned = node.target._schema.returns
    first = node.args[0] if node.args else None
    is_view = all(each.alias_info is not None and not each.alias_info.is_write for each in returned)
    return result.root.get(first.name) if is_view and isinstance(first, fx.Node) else None


def _values(node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
    return tuple(args), dict(kwargs)


def _is_tensor(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.untyped_storage().nbytes() > 0


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
