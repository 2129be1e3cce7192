"""Synthetic chains of layers: the simplest traces, for closed forms, examples and tests."""

from __future__ import annotations

from collections.abc import Sequence

from simgpu.trace.model import Block, BlockKind, Kernel, Origin, Phase, Trace, TraceInfo


def chain(forward_ns: Sequence[int], backward_ns: Sequence[int], bytes_: Sequence[int], op: str = "conv2d") -> Trace:
    """A chain of N layers, one kernel each way; layer n reads block x(n) and makes x(n+1).

    forward_ns, backward_ns: N durations in nanoseconds, layer 1 first. bytes_: sizes of the layers' inputs
    x1 .. xN in bytes; the loss xN+1 and the gradients take no bytes, so that memory shows the feature maps alone.
    Backward of layer n reads x(n) and the gradient of its output.

    >>> trace = chain([1, 2], [3, 4], [100, 200])
    >>> [kernel.id for kernel in trace.kernels]
    ['F1', 'F2', 'B2', 'B1']
    """
    count = len(forward_ns)
    if not count == len(backward_ns) == len(bytes_):
        raise ValueError(f"lengths differ: {count} forward, {len(backward_ns)} backward, {len(bytes_)} sizes")
    # Long chains are mostly names, so each is made once.
    values = [f"x{n}" for n in range(1, count + 2)]
    layers = [f"L{n}" for n in range(1, count + 1)]
    blocks = [Block(values[0], bytes_[0], BlockKind.INPUT, persistent=True, layer=layers[0])]
    kernels, reads = [], (values[0],)
    for n, (duration, layer) in enumerate(zip(forward_ns, layers, strict=True), 1):
        size = bytes_[n] if n < count else 0
        blocks.append(Block(values[n], size, BlockKind.ACTIVATION, layer=layer))
        writes = (values[n],)
        kernels.append(Kernel(f"F{n}", op, Phase.FORWARD, duration, reads, writes, layer, pure=True))
        reads = writes
    gradient, name = values[count], f"{op}_backward"
    for n, layer in zip(range(count, 0, -1), reversed(layers), strict=True):
        both, gradient = (values[n - 1], gradient), f"g{n}"
        blocks.append(Block(gradient, 0, BlockKind.GRADIENT, layer=layer))
        kernels.append(Kernel(f"B{n}", name, Phase.BACKWARD, backward_ns[n - 1], both, (gradient,), layer, pure=True))
    info = TraceInfo("chain", 1, "hand-made", "float32", Origin.MODELLED, "simgpu.trace.chain")
    return Trace(info, tuple(kernels), tuple(blocks), name="chain")
