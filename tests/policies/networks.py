"""Hand-made networks: layers with branches, joins and in-place activations, one kernel each way per layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simgpu.trace.chain import chain
from simgpu.trace.check import check_trace
from simgpu.trace.model import AlgorithmChoice, Block, BlockKind, Kernel, Origin, Phase, Trace, TraceInfo

INFO = TraceInfo("hand-made", 1, "none", "float32", Origin.MODELLED, "by hand")


@dataclass(frozen=True)
class Layer:
    """A layer that reads blocks and writes one of `size` bytes; in place if that is its only input.

    saved: the blocks its backward reads besides the gradient of its output; by default all of its inputs.
    """

    name: str
    op: str
    reads: tuple[str, ...]
    makes: str
    size: int = 100
    saved: tuple[str, ...] | None = None
    forward_ns: int = 10
    backward_ns: int = 20


def network(*layers: Layer, input_bytes: int = 100, gradients: bool = False) -> Trace:
    """A training iteration: forward of the layers in order, then backward; block `x` is the persistent input.

    Kernels are called ``F:name`` and ``B:name``. Gradients have the size of their block, or none.
    """
    sizes = {"x": input_bytes}
    blocks = [Block("x", input_bytes, BlockKind.INPUT, persistent=True)]
    kernels = []
    for layer in layers:
        if layer.makes not in sizes:
            sizes[layer.makes] = layer.size
            blocks.append(Block(layer.makes, layer.size, BlockKind.ACTIVATION, layer=layer.name))
        kernels.append(
            Kernel(
                f"F:{layer.name}", layer.op, Phase.FORWARD, layer.forward_ns, layer.reads, (layer.makes,), layer.name
            )
        )
    built: set[str] = set()
    for layer in reversed(layers):
        saved = layer.reads if layer.saved is None else layer.saved
        given = tuple(f"g:{b}" for b in dict.fromkeys((layer.makes, *layer.reads)) if f"g:{b}" in built)
        makes = tuple(f"g:{b}" for b in layer.reads)
        blocks += [
            Block(g, sizes[g[2:]] if gradients else 0, BlockKind.GRADIENT)
            for g in dict.fromkeys(makes)
            if g not in built
        ]
        built.update(makes)
        reads = tuple(dict.fromkeys((*saved, *given)))
        op = f"{layer.op}_backward"
        kernels.append(Kernel(f"B:{layer.name}", op, Phase.BACKWARD, layer.backward_ns, reads, makes, layer.name))
    trace = Trace(INFO, tuple(kernels), tuple(blocks), name="network")
    problems = check_trace(trace)
    assert not problems, "\n".join(map(str, problems))
    return trace


def straight(ops: Sequence[str], sizes: Sequence[int]) -> Trace:
    """A chain of layers L1, L2, ...; layer n reads block n - 1 (`x` for the first, then `y1`, `y2`, ...)."""
    names = ["x", *(f"y{n}" for n in range(1, len(ops) + 1))]
    layers = [
        Layer(f"L{n}", op, (names[n - 1],), names[n], sizes[n] if n < len(sizes) else 0)
        for n, op in enumerate(ops, start=1)
    ]
    return network(*layers, input_bytes=sizes[0])


def residual() -> Trace:
    """conv1, then a branch of two convolutions added to its input, then pooling and a classifier."""
    return network(
        Layer("conv1", "conv2d", ("x",), "a"),
        Layer("conv2", "conv2d", ("a",), "b"),
        Layer("conv3", "conv2d", ("b",), "c"),
        Layer("add", "add", ("a", "c"), "d", saved=()),
        Layer("pool", "max_pool2d", ("d",), "e"),
        Layer("fc", "linear", ("e",), "f", 0),
    )


def inception() -> Trace:
    """A fork into three branches, one of them activated in place, and a concatenation that a convolution reads."""
    return network(
        Layer("stem", "conv2d", ("x",), "s"),
        Layer("one", "conv2d", ("s",), "p"),
        Layer("three", "conv2d", ("s",), "q"),
        Layer("relu", "relu_", ("q",), "q"),
        Layer("pool", "max_pool2d", ("s",), "r"),
        Layer("cat", "cat", ("p", "q", "r"), "t", 300, saved=()),
        Layer("conv", "conv2d", ("t",), "u"),
        Layer("fc", "linear", ("u",), "v", 0),
        gradients=True,
    )


def in_place() -> Trace:
    """Convolutions, each followed by an activation in place."""
    return network(
        Layer("conv1", "conv2d", ("x",), "a"),
        Layer("relu1", "relu_", ("a",), "a"),
        Layer("conv2", "conv2d", ("a",), "b"),
        Layer("relu2", "relu_", ("b",), "b"),
        Layer("fc", "linear", ("b",), "c"),
        Layer("loss", "nll_loss", ("c",), "d", 4),
        gradients=True,
    )


def with_choices() -> Trace:
    """Four convolutions and a pooling; each convolution has three algorithms, from small and slow to large and fast."""
    trace = straight(["conv2d", "conv2d", "max_pool2d", "conv2d", "conv2d"], [100, 100, 200, 200, 300])
    choices = []
    for kernel in trace.kernels:
        if kernel.op.startswith("conv2d"):
            time = kernel.duration_ns
            choices += [
                AlgorithmChoice(kernel.id, "implicit", 4 * time, 0),
                AlgorithmChoice(kernel.id, "tiled", 3 * time, 60),
                AlgorithmChoice(kernel.id, "fft", time, 350),
            ]
    return Trace(trace.info, trace.kernels, trace.blocks, tuple(choices), name="with choices")


def zero_bytes() -> Trace:
    """A chain in which some blocks take no bytes at all."""
    return straight(["conv2d", "max_pool2d", "conv2d", "linear"], [0, 100, 0, 50])


def optimizer_first() -> Trace:
    """Gradients are cleared before the forward pass and weights updated after the backward pass."""
    base = straight(["conv2d", "max_pool2d", "conv2d", "linear"], [100, 200, 300, 100])
    weight = Block("w", 40, BlockKind.WEIGHT, persistent=True)
    gradient = Block("dw", 40, BlockKind.WEIGHT_GRADIENT, persistent=True)
    clear = Kernel("clear", "zero_", Phase.OPTIMIZER, 3, (), ("dw",))
    step = Kernel("step", "sgd", Phase.OPTIMIZER, 5, ("w", "dw"), ("w",))
    return Trace(INFO, (clear, *base.kernels, step), (*base.blocks, weight, gradient), name="optimizer first")


def two_passes() -> Trace:
    """Two forward and backward passes over one input in one iteration, as with accumulated gradients."""
    first = straight(["max_pool2d", "max_pool2d", "linear", "linear"], [100, 200, 300, 100])
    blocks = list(first.blocks)
    kernels = list(first.kernels)
    again = {block.id: f"{block.id}-again" for block in first.blocks if not block.persistent}
    for block in first.blocks:
        if block.id in again:
            blocks.append(Block(again[block.id], block.bytes, block.kind, layer=block.layer))
    for kernel in first.kernels:
        reads = tuple(again.get(b, b) for b in kernel.reads)
        writes = tuple(again.get(b, b) for b in kernel.writes)
        name = f"{kernel.id}-again"
        kernels.append(Kernel(name, kernel.op, kernel.phase, kernel.duration_ns, reads, writes, kernel.layer))
    return Trace(INFO, tuple(kernels), tuple(blocks), name="two passes")


#: The hand-made traces of the contract, by name.
NETWORKS = {
    "chain": lambda: chain([5, 7, 9, 4], [10, 14, 18, 8], [100, 200, 300, 50]),
    "in place": in_place,
    "residual": residual,
    "inception": inception,
    "zero bytes": zero_bytes,
    "with choices": with_choices,
    "optimizer first": optimizer_first,
    "two passes": two_passes,
}
