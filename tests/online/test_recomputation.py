"""Which blocks can be recomputed: never after something that their kernels read is overwritten or gone."""

from __future__ import annotations

from simgpu.graph.taskgraph import TaskGraph
from simgpu.online.recomputation import Recomputation
from simgpu.trace.model import Block, BlockKind, Kernel, Origin, Phase, Trace, TraceInfo

INFO = TraceInfo("by hand", 1, "gpu", "float32", Origin.MODELLED, "by hand")
FORWARD, BACKWARD, OPTIMIZER = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER


def droppable(kernels: list[Kernel], blocks: list[Block]) -> set[str]:
    graph = TaskGraph.of(Trace(INFO, tuple(kernels), tuple(blocks)))
    recomputation = Recomputation.of(graph)
    return {graph.blocks[b].id for b in range(len(blocks)) if recomputation.can_drop[b]}


def weight(name: str) -> Block:
    return Block(name, 8, BlockKind.WEIGHT, persistent=True)


def value(name: str, release: str | None = None) -> Block:
    return Block(name, 8, BlockKind.ACTIVATION, release=release)


def test_results_of_pure_kernels_can_be_made_again_in_forward_and_backward() -> None:
    kernels = [
        Kernel("f", "mm", FORWARD, 5, ("x", "w"), ("y",), pure=True),
        Kernel("b", "mm", BACKWARD, 5, ("y", "w"), ("g",), pure=True),
        Kernel("u", "add", BACKWARD, 5, ("g",), ("h",), pure=True),
    ]
    blocks = [Block("x", 8, BlockKind.INPUT, persistent=True), weight("w"), value("y"), value("g"), value("h")]
    assert droppable(kernels, blocks) == {"y", "g", "h"}


def test_what_an_optimizer_has_overwritten_is_lost() -> None:
    """The gradient g is read by the second update, after the first has changed the weight that g is made of."""
    kernels = [
        Kernel("f", "mm", FORWARD, 5, ("w",), ("y",), pure=True),
        Kernel("b", "mm", BACKWARD, 5, ("y", "w"), ("g",), pure=True),
        Kernel("s1", "add_", OPTIMIZER, 5, ("y",), ("w",), pure=True),
        Kernel("s2", "add_", OPTIMIZER, 5, ("g",), ("v",), pure=True),
    ]
    assert droppable(kernels, [weight("w"), weight("v"), value("y"), value("g")]) == {"y"}


def test_what_depends_on_a_freed_constant_is_lost() -> None:
    constant = Block("c", 8, BlockKind.OTHER, host_write="f", release="f")
    kernels = [
        Kernel("f", "mm", FORWARD, 5, ("c",), ("y",), pure=True),
        Kernel("b", "mm", BACKWARD, 5, ("y",), ("g",), pure=True),
    ]
    assert droppable(kernels, [constant, value("y"), value("g")]) == {"g"}


def test_random_numbers_are_not_drawn_again() -> None:
    kernels = [
        Kernel("f", "bernoulli", FORWARD, 5, (), ("y",), pure=False),
        Kernel("b", "mm", BACKWARD, 5, ("y",), ("g",), pure=True),
    ]
    assert droppable(kernels, [value("y"), value("g")]) == {"g"}
