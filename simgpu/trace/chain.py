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
    blocks = [Block("x1", bytes_[0], BlockKind.INPUT, persistent=True, layer="L1")]
    kernels = []
    for n in range(1, count + 1):
        size = bytes_[n] if n < count else 0
        blocks.append(Block(f"x{n + 1}", size, BlockKind.ACTIVATION, layer=f"L{n}"))
        kernels.append(
            Kernel(f"F{n}", op, Phase.FORWARD, forward_ns[n - 1], (f"x{n}",), (f"x{n + 1}",), f"L{n}", pure=True)
        )
    for n in range(count, 0, -1):
        blocks.append(Block(f"g{n}", 0, BlockKind.GRADIENT, layer=f"L{n}"))
        reads = (f"x{n}", f"g{n + 1}" if n < count else f"x{n + 1}")
        name = f"{op}_backward"
        kernels.append(Kernel(f"B{n}", name, Phase.BACKWARD, backward_ns[n - 1], reads, (f"g{n}",), f"L{n}", pure=True))
    info = TraceInfo("chain", 1, "hand-made", "float32", Origin.MODELLED, "simgpu.trace.chain")
    return Trace(info, tuple(kernels), tuple(blocks), name="chain")
