"""`run_backward` runs autograd's graph as PyTorch's engine does: the latest node first, weights as soon as complete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from simgpu.trace.model import BlockKind, Phase
from simgpu.workloads.eager.pointwise import cast, clone, elementwise
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Node, Tensor
from simgpu.workloads.eager.views import summed_to
from simgpu.workloads.lowering.tape import TapeBlock
from simgpu.workloads.timemodel.operation import Direction, OperationKind

#: Called with a weight and its gradient, as PyTorch's ``register_post_accumulate_grad_hook``.
Hook = Callable[[Tensor, Tensor], None]


def run_backward(
    session: Session,
    loss: Tensor,
    gradients: dict[TapeBlock, Tensor],
    hook: Hook | None = None,
    received: Tensor | None = None,
) -> None:
    """Puts the backward pass on the tape.

    gradients: that of each weight by the weight's block; new ones are stored here, or added in place to those of
    earlier micro-batches (``accumulate_grad.h``). The loss's gradient, a one, is live until backward ends.
    hook: called as soon as the gradient of a weight is complete; may put kernels on the tape.
    received: the gradient of a result that is no loss, which another GPU has computed. The caller holds it, so that
    nothing is added to it in place.
    """
    tape = session.tape
    tape.phase = Phase.BACKWARD
    if received is not None:
        engine = _Engine(session, loss, gradients, hook)
        engine.holders[received.block] += 1
        engine.run(received)
    else:
        tape.layer = "loss"
        (one,) = session.run("ones_like", (), ((loss.shape, loss.dtype),))
        _Engine(session, loss, gradients, hook).run(one)
        session.keep((one,))
    _direct_products(session)


@dataclass(slots=True)
class _Engine:
    """The state of one backward pass: gradients that wait for a node, by node and slot; those of weights by block."""

    session: Session
    loss: Tensor
    of_weight: dict[TapeBlock, Tensor]
    hook: Hook | None
    waiting: dict[Node, list[Tensor | None]] = field(default_factory=dict)
    missing: Counter[Node] = field(default_factory=Counter)
    holders: Counter[TapeBlock] = field(default_factory=Counter)
    ready: list[tuple[int, Node]] = field(default_factory=list)

    def run(self, one: Tensor) -> None:
        root = self.loss.node
        assert root is not None
        self._count(root)
        self._put(root, self.loss.slot, one)
        heappush(self.ready, (-root.number, root))
        while self.ready:
            self._run_node(heappop(self.ready)[1])

    def _count(self, root: Node) -> None:
        """Counts for each node how many gradients it waits for."""
        stack, seen = [root], {root}
        while stack:
            for x in stack.pop().inputs:
                if x.node is not None:
                    self.missing[x.node] += 1
                    if x.node not in seen:
                        seen.add(x.node)
                        stack.append(x.node)

    def _run_node(self, node: Node) -> None:
        grads = self.waiting.pop(node)
        self.holders.subtract(grad.block for grad in grads if grad is not None)
        tape = self.session.tape
        tape.layer, node.begin = node.layer, len(tape.kernels)
        created = node.backward(grads)
        node.unused = len(tape.kernels) - 1
        node.handed_on = frozenset(x.block for x in node.saved) & {x.block for x in created if x is not None}
        results = [
            None if grad is None or x.node is None else self._fitted(grad, x)
            for grad, x in zip(created, node.inputs, strict=True)
        ]
        node.freed = len(tape.kernels) - 1
        self.session.keep(node.saved, grads)
        self.holders.update(grad.block for grad in results if grad is not None)
        for x, grad in zip(node.inputs, results, strict=True):
            if x.node is not None:
                self._give(x.node, x.slot, grad)

    def _fitted(self, grad: Tensor, x: Tensor) -> Tensor:
        """A gradient in the shape and number format of the value, as the engine's ``validate_outputs`` makes it."""
        return cast(self.session, summed_to(self.session, grad, x.shape), x.dtype)

    def _give(self, node: Node, slot: int, grad: Tensor | None) -> None:
        if grad is not None:
            self.holders[grad.block] -= 1
            self._put(node, slot, grad)
        self.missing[node] -= 1
        if self.missing[node]:
            return
        if node.weight is not None:
            self._collect(node.weight, node)
        elif any(each is not None for each in self.waiting.get(node, ())):
            heappush(self.ready, (-node.number, node))

    def _put(self, node: Node, slot: int, grad: Tensor) -> None:
        """Adds a gradient to those that wait for a node; in place if nothing else uses the first one's memory."""
        slots = self.waiting.setdefault(node, [None] * node.slots)
        first = slots[slot]
        if first is not None:
            self.holders[first.block] -= 1
            grad = self._sum(first, grad, node.adds_in_place)
        slots[slot] = grad
        self.holders[grad.block] += 1

    def _sum(self, first: Tensor, second: Tensor, may_be_in_place: bool) -> Tensor:
        """``can_accumulate_inplace`` in PyTorch's ``input_buffer.cpp``: not into a view, nor into shared memory.

        Of distributed tensors, not at all, and of a gradient that a GPU has whole it first copies its part.
        """
        if not may_be_in_place and second.bytes < second.block.bytes:
            result = elementwise(self.session, "add", first, clone(self.session, second))
            self.session.keep((second,))
            return result
        if not may_be_in_place or first.is_view or first.block is second.block or self.holders[first.block]:
            return elementwise(self.session, "add", first, second)
        self.session.run_in_place("add_", first, (second,))
        return first

    def _collect(self, weight: Tensor, node: Node) -> None:
        (grad,) = self.waiting.pop(node)
        assert grad is not None
        if weight.block in self.of_weight:
            of_earlier = self.of_weight[weight.block]
            self.session.run_in_place("add_", of_earlier.seen(of_earlier.block.shape), (grad.seen(grad.block.shape),))
        else:
            grad.block.kind, grad.block.id = BlockKind.WEIGHT_GRADIENT, f"{weight.block.id}.grad"
            grad.block.layer = weight.block.layer
            self.of_weight[weight.block] = grad
        if self.hook is not None:
            self.hook(weight, self.of_weight[weight.block])


def _direct_products(session: Session) -> None:
    """Marks the products that compute gradients of weights, which the time model prices differently."""
    kernels = session.tape.kernels
    for place, kernel in enumerate(kernels):
        if kernel.phase is Phase.BACKWARD and _writes_gradient_of_weight(kernel.writes):
            work = (
                replace(each, direction=Direction.BACKWARD_WEIGHTS) if each.kind is OperationKind.GEMM else each
                for each in kernel.operations
            )
            kernels[place] = replace(kernel, operations=tuple(work))


def _writes_gradient_of_weight(blocks: Iterable[TapeBlock]) -> bool:
    return any(block.kind is BlockKind.WEIGHT_GRADIENT for block in blocks)
