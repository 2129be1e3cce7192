"""The operands of kernels that G10's profiler timed under page faults, and where it had put them.

The profiler (Zhang et al., MICRO 2023; `src/cudnn` of github.com/platformxlab/G10) runs each kernel alone in a process
that has just started. It allocates managed memory for every operand, has the host write the inputs, and for some
operators the results. Before `InputPF` timings it moves the inputs to the GPU, so that, in spite of the name, only
results fault; before `PF` timings nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: The timings, by suffix of their files.
FAULTS = {
    "PF": "every kernel with its data in host memory",
    "InputPF": "every kernel with its inputs on the GPU",
}
#: Operators whose results the host has written before.
_HOST_RESULTS = frozenset(
    (
        *("Add_Forward", "Add_Backward", "Add_MultiGredient", "Subtract_Forward", "Subtract_Backward", "Sum_Forward"),
        *("Apply_Grad", "Conv2d_Apply_Grad", "BatchNorm2d_Apply_Grad", "Linear_Apply_Grad_Bias"),
        *("Linear_Apply_Grad_Weight", "Conv2d_Backward_Weight"),
    )
)
#: The inputs of operators by element. All their operands have the size of the forward result, also those that the graph
#: broadcasts. Where the graph has it: for backward operators it is the largest operand.
_LIKE_THE_RESULT = {
    **dict.fromkeys(("Divide_Forward", "Multiply_Forward", "Power_Forward", "Add_Forward", "Subtract_Forward"), 2),
    **dict.fromkeys(("Tanh_Forward", "Erf_Forward", "GatherV2_Forward"), 1),
}
_LIKE_THE_LARGEST = {
    **dict.fromkeys(("Divide_Backward_A", "Multiply_Backward", "Tanh_Backward", "Erf_Backward"), 2),
    **dict.fromkeys(("Divide_Backward_B", "Power_Backward"), 3),
}
#: Operators that also read the forward result, of the size of its gradient, which is never moved to the GPU before.
_READ_RESULTS_TOO = frozenset(("ReLU_Backward", "MaxPool2d_Backward", "AdaptiveAvgPool2d_Backward"))
#: Operators whose workspace the host has written before.
_HOST_WORKSPACES = frozenset(("Conv2d_Backward_Input", "Conv2d_Backward_Weight"))


class Operand(NamedTuple):
    """bytes: size. result: whether the kernel writes it. place: gpu, host, or none: its first values are results."""

    bytes: int
    result: bool
    place: str


def operands(
    op: str, read: list[int], written: list[int], changed: list[int], faults: str, scratch: Sequence[int] = ()
) -> tuple[Operand, ...]:
    """The operands of a kernel as the profiler allocated them.

    read, written, changed: bytes of the operands that it reads, writes, or both, in the recorded graph. faults: one of
    `FAULTS`. scratch: bytes of its workspaces. Not in the graph, and so not as the profiler had them: the operands of a
    batched product's backward pass, which it times as forward, and bytes of some of their results.

    >>> operands("Divide_Forward", [100, 4], [100], [], "InputPF")
    (Operand(bytes=100, result=False, place='gpu'), Operand(bytes=100, result=False, place='gpu'), \
Operand(bytes=100, result=True, place='none'))
    >>> operands("Add_MultiGredient", [100], [], [100], "PF")[1:]
    (Operand(bytes=100, result=False, place='host'), Operand(bytes=100, result=True, place='host'))
    """
    inputs, results = _sizes(op, read, written, changed)
    host_results = op in _HOST_RESULTS or bool(changed)
    more = [min(read)] if op in _READ_RESULTS_TOO and read else []
    return (
        *(Operand(size, False, "host" if faults == "PF" else "gpu") for size in inputs),
        *(Operand(size, False, "host") for size in more),
        *(Operand(size, True, "host" if host_results else "none") for size in results),
        *(Operand(size, True, "host" if op in _HOST_WORKSPACES else "none") for size in scratch),
    )


def _sizes(op: str, read: list[int], written: list[int], changed: list[int]) -> tuple[list[int], list[int]]:
    """Bytes of inputs and results."""
    if op in _LIKE_THE_RESULT:
        return [written[0]] * _LIKE_THE_RESULT[op], [written[0]]
    if op in _LIKE_THE_LARGEST:
        largest = max(read + written)
        return [largest] * _LIKE_THE_LARGEST[op], [largest]
    if op in ("Add_Backward", "Subtract_Backward"):
        return [read[0]], [read[0]] * 2
    if op == "Add_MultiGredient":
        # A sum of gradients is in place in the graph; the profiler has a result of its own.
        largest = max(read + changed + written)
        return [largest] * len(read + changed), [largest]
    if op == "Sqrt_Forward":
        return [min(read)], [min(read)]
    if op == "Sqrt_Backward":
        return [written[0]] * 2, [written[0]]
    if op == "Sum_Backward":
        return [min(read)], written
    if op == "GatherV2_Backward":
        return [min(read)], [min(read)]
    if op == "BatchMatMul_Forward" and len(read) == 1:
        # The graph lists an operand once that is both factors.
        return read * 2, written
    return read, [*written, *changed]
