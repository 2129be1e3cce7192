"""What part a block has in an iteration, as far as the compressibility of its memory depends on it.

A role is a kind of block and what gives it its values, joined by dots, such as ``activation.relu.convolution``:

* A feature map, a gradient, or another block that kernels make: the sort of operator that writes it last, forward for
  a feature map. A ReLU's result is told apart by what went into it, and the gradient that comes back through a ReLU by
  that ReLU. The first convolution, which reads the batch, is its own sort: its results stay less sparse than others
  (cDMA, Rhu et al., section IV-A). Max pooling, dropout and concatenation keep zeros, so they are told apart by what
  they read, ``relu`` where that has come from one. Local response normalization counts as what it reads.
* A weight: the sort of operator that reads it first. Its gradient and the optimizer's state for it, which are named
  after it: the same; state has its own name before that, such as ``optimizer_state.momentum_buffer.linear``. A
  gradient that has only the rows in use of an embedding is one of ``embedding_rows``.
* The batch: its kind, and ``integer`` for numbers of words or classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from simgpu.trace.model import Block, BlockKind, Kernel, Phase, Trace

# First match wins: "max_pool2d_with_indices_backward" is max_pooling, "embedding_dense_backward" an embedding.
_SORTS = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("embedding_rows", r"embedding_sparse"),
        ("embedding", r"embedding|index_select"),
        ("relu", r"(^|[^a-z])(relu|relu6|threshold)_?([^a-z]|$)"),
        ("max_pooling", r"max_?pool"),
        ("average_pooling", r"avg_?pool|(^|[^a-z])mean([^a-z]|$)"),
        ("response_normalization", r"local_?response|(^|[^a-z])lrn"),
        ("normalization", r"norm"),
        ("dropout", r"drop_?out"),
        ("loss", r"softmax|nll_?loss|cross_?entropy"),
        ("recurrent", r"sigmoid|tanh|lstm|gru"),
        ("concatenation", r"(^|[^a-z])(cat|concat|stack)([^a-z]|$)"),
        ("convolution", r"conv"),
        ("linear", r"(^|[^a-z])(addmm|baddbmm|bmm|mm|matmul)([^a-z]|$)|linear"),
        ("sum", r"(^|[^a-z])(add|sum)_?([^a-z]|$)"),
        ("product", r"(^|[^a-z])(mul|div)_?([^a-z]|$)"),
    )
)
_KEEP_ZEROS = ("max_pooling", "dropout", "concatenation")
_OF_WEIGHTS = (BlockKind.WEIGHT_GRADIENT, BlockKind.OPTIMIZER_STATE)


def roles_of(trace: Trace) -> dict[str, str]:
    """The role of each block that has one, by id: none for workspaces, and where nothing tells.

    >>> from simgpu import load_trace
    >>> roles = roles_of(load_trace("vgg11-cifar-cpu"))
    >>> roles["conv1_1:convolution"], roles["fc6.weight.momentum_buffer"]
    ('activation.relu.first_convolution', 'optimizer_state.momentum_buffer.linear')
    """
    created = _Making(trace)
    weights = {block.id: created.read_by[block.id] for block in trace.blocks if _is_read_weight(block, created.read_by)}
    result = {block.id: _role(block, created, weights) for block in trace.blocks}
    return {name: role for name, role in result.items() if role}


class _Making:
    """What kernels make: by block the sort that it is in forward, and after the iteration; and what reads it first."""

    def __init__(self, trace: Trace) -> None:
        self.forward: dict[str, str] = {}
        self.last: dict[str, str] = {}
        self.read_by: dict[str, str] = {}
        batch = {block.id for block in trace.blocks if block.kind is BlockKind.INPUT}
        for kernel in trace.kernels:
            sort = _sort(kernel.op)
            if kernel.phase is Phase.FORWARD:
                for name in kernel.reads:
                    self.read_by.setdefault(name, sort)
            is_first = sort == "convolution" and not batch.isdisjoint(kernel.reads) and kernel.phase is Phase.FORWARD
            self._written(kernel, "first_convolution" if is_first else sort)

    def _written(self, kernel: Kernel, sort: str) -> None:
        if kernel.phase is Phase.FORWARD:
            sort = _with_source(sort, next((self.forward[name] for name in kernel.reads if name in self.forward), ""))
            self.forward.update(dict.fromkeys(kernel.writes, sort))
        elif sort == "relu":
            sort = next((self.forward[name] for name in kernel.reads if _is_relu(self.forward.get(name, ""))), sort)
        self.last.update(dict.fromkeys(kernel.writes, sort))


def _with_source(sort: str, source: str) -> str:
    """A sort in forward, and of what sort that is which the kernel reads."""
    if sort == "response_normalization":
        return source
    if sort == "relu":
        return _joined(sort, source.removeprefix("relu.")) or sort
    if sort in _KEEP_ZEROS:
        return _joined(sort, "relu" if "relu" in source.split(".") else source.partition(".")[0]) or sort
    return sort


def _role(block: Block, step: _Making, weights: Mapping[str, str]) -> str:
    if block.kind in (BlockKind.INPUT, BlockKind.LABEL):
        return f"{block.kind}.integer" if "int" in (block.dtype or "") else str(block.kind)
    if block.kind is BlockKind.WEIGHT:
        return _joined(block.kind, weights.get(block.id, ""))
    if step.last.get(block.id) == "embedding_rows":
        return _joined(block.kind, "embedding_rows")
    if block.kind in _OF_WEIGHTS and (weight := _named_after(block.id, weights)) is not None:
        name = block.id[len(weight) + 1 :] if block.kind is BlockKind.OPTIMIZER_STATE else ""
        return _joined(block.kind, *([name] if name else []), weights[weight])
    if block.kind in (BlockKind.WORKSPACE, BlockKind.OPTIMIZER_STATE):
        return ""
    if block.kind is BlockKind.ACTIVATION:
        return _joined(block.kind, step.forward.get(block.id, ""))
    sort = step.last.get(block.id, "")
    return _joined(block.kind, sort.partition(".")[0] if block.kind is BlockKind.OTHER else sort)


def _joined(*parts: str) -> str:
    return ".".join(parts) if all(parts) else ""


def _is_read_weight(block: Block, read_by: Mapping[str, str]) -> bool:
    return block.kind is BlockKind.WEIGHT and block.id in read_by


def _is_relu(sort: str) -> bool:
    return sort.startswith("relu")


def _named_after(name: str, weights: Iterable[str]) -> str | None:
    """The weight with whose name and a dot a name begins; the longest of several."""
    return max((weight for weight in weights if name.startswith(f"{weight}.")), key=len, default=None)


def _sort(op: str) -> str:
    name = op.lower()
    return next((sort for sort, pattern in _SORTS if pattern.search(name)), "")
