"""The operands of kernels that G10's profiler timed under page faults, and where it had put them.

The profiler (Zhang et al., MICRO 2023; `src/cudnn` of github.com/platformxlab/G10) runs each kernel alone in a process
that has just started. It allocates managed memory for every operand, has the host write the inputs, and for some
operators the results. Before `InputPF` timings it moves the inputs to the GPU, so that, in spite of the name, only
results fault; before `PF` timings nothing.
"""

from __future__ import annotations

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
#: The inputs of operators by element. All operands, also those that are broadcast in the network, are as large as the
#: largest one.
_BY_ELEMENT = {
    **dict.fromkeys(("Divide_Forward", "Multiply_Forward", "Power_Forward", "Add_Forward", "Subtract_Forward"), 2),
    **dict.fromkeys(("Divide_Backward_A", "Multiply_Backward", "Sqrt_Backward", "Tanh_Backward", "Erf_Backward"), 2),
    **dict.fromkeys(("Divide_Backward_B", "Power_Backward"), 3),
    **dict.fromkeys(("Sqrt_Forward", "Tanh_Forward", "Erf_Forward", "GatherV2_Forward", "GatherV2_Backward"), 1),
}
#: Operators that also read the forward result, of the size of its gradient, which is never moved to the GPU before.
_READ_RESULTS_TOO = frozenset(("ReLU_Backward", "MaxPool2d_Backward", "AdaptiveAvgPool2d_Backward"))


class Operand(NamedTuple):
    """bytes: size. result: whether the kernel writes it. place: gpu, host, or none: its first values are results."""

    bytes: int
    result: bool
    place: str


def operands(op: str, read: list[int], written: list[int], changed: list[int], faults: str) -> tuple[Operand, ...]:
    """The operands of a kernel as the profiler allocated them.

    read, written, changed: bytes of the operands that it reads, writes, or both, in the recorded graph. faults: one of
    `FAULTS`. In the graph a sum of gradients is in place; the profiler has a result of its own.

    >>> operands("Divide_Forward", [100, 4], [100], [], "InputPF")
    (Operand(bytes=100, result=False, place='gpu'), Operand(bytes=100, result=False, place='gpu'), \
Operand(bytes=100, result=True, place='none'))
    >>> operands("Add_MultiGredient", [100], [], [100], "PF")[1:]
    (Operand(bytes=100, result=False, place='host'), Operand(bytes=100, result=True, place='host'))
    """
    inputs, results = read, [*written, *changed]
    if op == "Add_MultiGredient":
        inputs = [*read, *changed]
    if op in _BY_ELEMENT:
        largest = max(inputs + results)
        inputs, results = [largest] * _BY_ELEMENT[op], [largest]
    host_results = op in _HOST_RESULTS or bool(changed)
    more = [min(read)] if op in _READ_RESULTS_TOO and read else []
    return (
        *(Operand(size, False, "host" if faults == "PF" else "gpu") for size in inputs),
        *(Operand(size, False, "host") for size in more),
        *(Operand(size, True, "host" if host_results else "none") for size in results),
    )
