"""`Session` runs operators: it allocates their results, puts their kernels on a tape and notes their backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain

from simgpu.trace.model import BlockKind, Phase
from simgpu.workloads.eager.strides import Sizes, contiguous_strides
from simgpu.workloads.eager.tensor import Node, NodeBackward, Tensor
from simgpu.workloads.eager.work import work_of, work_of_adding
from simgpu.workloads.lowering.tape import Tape, TapeBlock
from simgpu.workloads.timemodel.kinds import kind_of
from simgpu.workloads.timemodel.operation import Operation, OperationKind

_FLOATS = frozenset(("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"))


@dataclass(frozen=True, slots=True)
class Save:
    """A tensor that autograd saved for a node. after: position of the latest kernel before; -1 for none."""

    tensor: Tensor
    node: Node
    after: int


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """A call of an operator. place: of its kernel on the tape. changed: what it changed in place, which `reads` begins
    with unless it was overwritten. collects: whether it adds to the complete gradient of a weight."""

    place: int
    op: str
    reads: tuple[Tensor, ...]
    created: tuple[Tensor, ...] = ()
    changed: Tensor | None = None
    collects: bool = False


@dataclass(slots=True)
class Session:
    """One iteration of a model whose operators run one after another.

    weights: trained, in the order of creation, each with the layer that owns it. nodes: number of backward functions.
    saves: what autograd saved for backward, in order. autocast: the lower precision inside `autocasting`; None outside.
    casts: of weights, by the weight's block, which autocast caches until it is left. launches: all calls of operators,
    noted where a compiler needs them; else None. is_distributed: whether operators run on distributed tensors (DTensor)
    whose gradients are not added up in place.
    """

    tape: Tape = field(default_factory=Tape)
    weights: list[Tensor] = field(default_factory=list)
    nodes: int = 0
    saves: list[Save] = field(default_factory=list)
    autocast: str | None = None
    casts: dict[TapeBlock, Tensor] = field(default_factory=dict)
    launches: list[Launch] | None = None
    is_distributed: bool = False
    _constants: dict[str, Tensor] = field(default_factory=dict)
    _path: list[str] = field(default_factory=list)

    @contextmanager
    def layer(self, name: str) -> Iterator[None]:
        """Inside the context, kernels belong to this module of the current one."""
        before = self.tape.layer
        self._path.append(name)
        self.tape.layer = ".".join(self._path)
        yield
        self._path.pop()
        self.tape.layer = before

    @contextmanager
    def autocasting(self, dtype: str | None) -> Iterator[None]:
        """Inside the context, products run in this lower precision, as under ``torch.autocast``; None: no autocast."""
        self.autocast = dtype
        yield
        self.keep(list(self.casts.values()))
        self.casts.clear()
        self.autocast = None

    @contextmanager
    def distributed(self, is_distributed: bool = True) -> Iterator[None]:
        """Inside the context, operators run on distributed tensors, if so chosen."""
        before, self.is_distributed = self.is_distributed, is_distributed
        yield
        self.is_distributed = before

    def weight(self, name: str, shape: Sizes, dtype: str, trained: bool = True) -> Tensor:
        """A weight of the current layer. One that is not trained needs no gradient."""
        value = self.tape.constant(f"{self.tape.layer}.{name}", shape, BlockKind.WEIGHT, dtype)
        if not trained:
            return Tensor(value.block, shape, contiguous_strides(shape))
        result = Tensor(value.block, shape, contiguous_strides(shape))
        result.node = Node(0, (), (), lambda grads: (), self.tape.layer, weight=result)
        self.weights.append(result)
        return result

    def constant(self, name: str, shape: Sizes, dtype: str, kind: BlockKind) -> Tensor:
        """A tensor that exists before the iteration and is not trained; the same one each time for a name."""
        if name not in self._constants:
            block = self.tape.constant(name, shape, kind, dtype).block
            self._constants[name] = Tensor(block, shape, contiguous_strides(shape))
        return self._constants[name]

    def run(
        self,
        op: str,
        reads: Sequence[Tensor],
        results: Sequence[tuple[Sizes, str]],
        *,
        strides: Sizes | None = None,
        operations: Sequence[Operation] = (),
        priced: Sequence[Tensor] | None = None,
        pure: bool = True,
    ) -> list[Tensor]:
        """Runs an operator that creates new tensors. Those without values need no block.

        results: shape and number format of each. strides: of those that have the first one's shape; contiguous by
        default.
        operations: its work; by default what `work_of` derives from `priced`, the operands that it reads completely.
        """
        tape = self.tape
        created = []
        for place, (shape, dtype) in enumerate(results):
            block = self._new_block(f"{tape.layer}:{op}", shape, self._kind(place, dtype), dtype)
            own = strides if strides is not None and shape == results[0][0] else contiguous_strides(shape)
            created.append(Tensor(block, shape, own))
        work = operations or (work_of(op, reads if priced is None else priced, created, self.in_backward),)
        read, written = ([x.block for x in group if x.block.bytes] for group in (reads, created))
        self._note(op, reads, created)
        tape.launch_blocks(op, work, read, written, pure=pure)
        return created

    def empty(self, shape: Sizes, dtype: str) -> Tensor:
        """Allocates a tensor whose values nothing sets, which takes no time."""
        block = self._new_block(f"{self.tape.layer}:empty", shape, self._kind(0, dtype), dtype)
        self.tape.launch_blocks("empty", (), (), [block] if block.bytes else [])
        return Tensor(block, shape, contiguous_strides(shape))

    def _note(
        self, op: str, reads: Sequence[Tensor], created: Sequence[Tensor] = (), changed: Tensor | None = None
    ) -> None:
        if self.launches is not None:
            collects = changed is not None and changed.block.kind is BlockKind.WEIGHT_GRADIENT
            place = len(self.tape.kernels)
            self.launches.append(Launch(place, op, tuple(reads), tuple(created), changed, collects))

    def _new_block(self, name: str, shape: Sizes, kind: BlockKind, dtype: str) -> TapeBlock:
        if 0 in shape:
            return TapeBlock(name, shape, dtype, kind, self.tape.layer)
        return self.tape.new(name, shape, kind, dtype).block

    def run_in_place(self, op: str, target: Tensor, others: Sequence[Tensor] = (), *, as_called: bool = False) -> None:
        """Runs an operator that changes `target`.

        In forward, one that adds to rows of the target does not read all of it. In backward it is priced as the
        operator with a new result that autograd calls for tensors that are followed, as in the recorder; but not where
        a backward function calls it so itself (`as_called`).
        """
        adds_rows = kind_of(op) is OperationKind.GATHER and (as_called or not self.in_backward)
        priced = others if adds_rows else (target, *others)
        work = work_of(op, priced, (target,), self.in_backward)
        self._note(op, (target, *others), changed=target)
        self.tape.launch_blocks(op, (work,), [x.block for x in (target, *others)], [target.block])

    def add_at(self, target: Tensor, places: Sequence[Tensor], values: Tensor) -> None:
        """Adds values to `target` at these places, as the backward of an index does."""
        others = (*places, values)
        self._note("index_put_", (target, *others), changed=target)
        blocks = [x.block for x in (target, *others)]
        self.tape.launch_blocks("index_put_", (work_of_adding(places, values),), blocks, [target.block])

    def overwrite(self, op: str, target: Tensor, others: Sequence[Tensor]) -> None:
        """Runs an operator that replaces all values of `target` without reading them."""
        work = work_of(op, others, (target,), self.in_backward)
        self._note(op, others, changed=target)
        self.tape.launch_blocks(op, (work,), [x.block for x in others], [target.block])

    @property
    def in_backward(self) -> bool:
        """Whether the backward pass runs."""
        return self.tape.phase is Phase.BACKWARD

    def _kind(self, place: int, dtype: str) -> BlockKind:
        if self.in_backward:
            return BlockKind.GRADIENT if dtype in _FLOATS else BlockKind.OTHER
        return BlockKind.ACTIVATION if place == 0 and dtype in _FLOATS else BlockKind.OTHER

    def record(
        self,
        results: Sequence[Tensor],
        inputs: Sequence[Tensor],
        backward: NodeBackward,
        saved: Sequence[Tensor] = (),
        *,
        in_python: bool = False,
        first: int | None = None,
    ) -> None:
        """Notes the backward of an operator, if one of its inputs needs a gradient.

        inputs: those that may need a gradient, in the order of what `backward` returns. saved: what autograd keeps.
        in_python: whether it is a ``torch.autograd.Function``, whose tensors are saved when its forward has ended.
        first: position of its first kernel; by default, it has no other than the latest.
        """
        if self.in_backward or all(x.node is None for x in inputs):
            return
        self.nodes += 1
        node = Node(self.nodes, tuple(inputs), tuple(saved), backward, self.tape.layer, len(results))
        node.adds_in_place = not self.is_distributed
        for slot, result in enumerate(results):
            result.node, result.slot = node, slot
        for x in saved:  # autograd saves operands before the kernel and results after it
            last = len(self.tape.kernels) - 1
            is_written = in_python or x.block in self.tape.kernels[last].writes
            self.saves.append(Save(x, node, last if is_written else (last if first is None else first) - 1))

    def keep(self, *groups: Sequence[Tensor | None]) -> None:
        """Frees these tensors no earlier than after the latest kernel."""
        self.tape.keep_blocks([x.block for x in chain.from_iterable(groups) if x is not None])
