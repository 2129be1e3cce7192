"""Roles of blocks in an iteration, which determine the compressibility of their memory; `roles_of` finds them.

A role is the block's kind and the operator type that determines its values, joined by dots, such as
``activation.relu.convolution``:

* A feature map, gradient or other block that kernels write: the operator type of the last writer (in forward, for a
  feature map). For a ReLU's result the type of the ReLU's input follows, and for the gradient of a ReLU that of the
  ReLU. The first convolution, which reads the batch, is a separate type: its results remain less sparse than others
  (cDMA, Rhu et al., section IV-A). Max pooling, dropout and concatenation keep zeros, so the type of their input
  follows, ``relu`` if it derives from one. Local response normalization has the type of its input.
* A weight: the operator type of its first reader. Its gradient and its optimizer state, which are named after it: the
  same; the state's own name precedes it, such as ``optimizer_state.momentum_buffer.linear``. A gradient that has only
  the used rows of an embedding is ``embedding_rows``.
* The batch: its kind, and ``integer`` for word or class numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from simgpu.trace.model import Block, BlockKind, Kernel, Phase, Trace

# First match wins: "max_pool2d_with_indices_backward" is max_pooling, "embedding_dense_backward" an embedding.
_TYPES = tuple(
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
    """The roles of blocks by id, without workspaces and blocks whose role cannot be determined.

    >>> from simgpu import load_trace
    >>> roles = roles_of(load_trace("vgg11-cifar-cpu"))
    >>> roles["conv1_1:convolution"], roles["fc6.weight.momentum_buffer"]
    ('activation.relu.first_convolution', 'optimizer_state.momentum_buffer.linear')
    """
    types = _OperatorTypes(trace)
    weights = {block.id: types.read_by[block.id] for block in trace.blocks if _is_read_weight(block, types.read_by)}
    result = {block.id: _role(block, types, weights) for block in trace.blocks}
    return {name: role for name, role in result.items() if role}


class _OperatorTypes:
    """Operator types by block: of its last writer in forward and in the iteration, and of its first reader."""

    def __init__(self, trace: Trace) -> None:
        self.forward: dict[str, str] = {}
        self.last: dict[str, str] = {}
        self.read_by: dict[str, str] = {}
        batch = {block.id for block in trace.blocks if block.kind is BlockKind.INPUT}
        for kernel in trace.kernels:
            op_type = _op_type(kernel.op)
            if kernel.phase is Phase.FORWARD:
                for name in kernel.reads:
                    self.read_by.setdefault(name, op_type)
            is_first = op_type == "convolution" and not batch.isdisjoint(kernel.reads) and kernel.phase is Phase.FORWARD
            self._written(kernel, "first_convolution" if is_first else op_type)

    def _written(self, kernel: Kernel, op_type: str) -> None:
        if kernel.phase is Phase.FORWARD:
            op_type = _with_source(
                op_type, next((self.forward[name] for name in kernel.reads if name in self.forward), "")
            )
            self.forward.update(dict.fromkeys(kernel.writes, op_type))
        elif op_type == "relu":
            op_type = next(
                (self.forward[name] for name in kernel.reads if _is_relu(self.forward.get(name, ""))), op_type
            )
        self.last.update(dict.fromkeys(kernel.writes, op_type))


def _with_source(op_type: str, source: str) -> str:
    """The operator type of a forward kernel, with the type of its input where a role includes it."""
    if op_type == "response_normalization":
        return source
    if op_type == "relu":
        return _joined(op_type, source.removeprefix("relu.")) or op_type
    if op_type in _KEEP_ZEROS:
        return _joined(op_type, "relu" if "relu" in source.split(".") else source.partition(".")[0]) or op_type
    return op_type


def _role(block: Block, types: _OperatorTypes, weights: Mapping[str, str]) -> str:
    if block.kind in (BlockKind.INPUT, BlockKind.LABEL):
        return f"{block.kind}.integer" if "int" in (block.dtype or "") else str(block.kind)
    if block.kind is BlockKind.WEIGHT:
        return _joined(block.kind, weights.get(block.id, ""))
    if types.last.get(block.id) == "embedding_rows":
        return _joined(block.kind, "embedding_rows")
    if block.kind in _OF_WEIGHTS and (weight := _named_after(block.id, weights)) is not None:
        name = block.id[len(weight) + 1 :] if block.kind is BlockKind.OPTIMIZER_STATE else ""
        return _joined(block.kind, *([name] if name else []), weights[weight])
    if block.kind in (BlockKind.WORKSPACE, BlockKind.OPTIMIZER_STATE):
        return ""
    if block.kind is BlockKind.ACTIVATION:
        return _joined(block.kind, types.forward.get(block.id, ""))
    op_type = types.last.get(block.id, "")
    return _joined(block.kind, op_type.partition(".")[0] if block.kind is BlockKind.OTHER else op_type)


def _joined(*parts: str) -> str:
    return ".".join(parts) if all(parts) else ""


def _is_read_weight(block: Block, read_by: Mapping[str, str]) -> bool:
    return block.kind is BlockKind.WEIGHT and block.id in read_by


def _is_relu(op_type: str) -> bool:
    return op_type.startswith("relu")


def _named_after(name: str, weights: Iterable[str]) -> str | None:
    """The longest weight name that, followed by a dot, is a prefix of `name`; None if there is none."""
    return max((weight for weight in weights if name.startswith(f"{weight}.")), key=len, default=None)


def _op_type(op: str) -> str:
    name = op.lower()
    return next((op_type for op_type, pattern in _TYPES if pattern.search(name)), "")
