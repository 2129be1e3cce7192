"""The time of a step whose kernels wait for the host: PyTorch's thread launches one operator after another.

`launch_note` says where that matters; ``host.launch`` of a node makes the machine count it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from simgpu.units import format_time

#: Nanoseconds in which PyTorch's thread runs an operator of a training loop: ResNet-50 at batch 1 on a V100, January
#: 2022, 89.033 ms for three iterations (pytorch/benchmark, pull request 706; Adam without multi-tensor operators), as
#: simgpu counts operators: 1862 in an iteration. The host limits it: batches of 2 and 4 take as long, and with a CUDA
#: graph the iterations take 50.233 ms.
OPERATOR_NS = 89_033_000 // (3 * 1862)


def step_ns(durations: Iterable[int], waits: Collection[int] = (), operator_ns: int = OPERATOR_NS) -> int:
    """The time of a step, in nanoseconds, at whose begin the device is idle.

    A kernel starts when the one before it has ended and the host has run its operator. durations: of the kernels, in
    order. waits: numbers of kernels for whose end the host waits before it goes on, as to read a value.

    >>> step_ns([5, 40, 5, 5], operator_ns=10), step_ns([5, 40, 5, 5], waits={1}, operator_ns=10)
    (70, 85)
    """
    host = device = 0
    for number, duration in enumerate(durations):
        host += operator_ns
        device = max(host, device) + duration
        if number in waits:
            host = device
    return device


#: Launches that take at least this share of the kernels' time are worth a note: a part of the step may wait for them.
_NOTABLE = 0.5
#: The shipped figure as people write it.
_ROUNDED = "16 us"


def launch_note(operators: int, kernels_ns: int) -> str:
    """A sentence where launches at the published time would take most of the kernels' time or more; else empty.

    operators: of an iteration. kernels_ns: nanoseconds of their kernels.

    >>> launch_note(1000, 40_000_000)
    ''
    >>> launch_note(1000, 10_000_000)
    '1,000 operators take 15.94 ms to launch at 15.94 us each (published for one machine), their kernels 10 ms; ...'
    """
    launches = operators * OPERATOR_NS
    if launches < _NOTABLE * kernels_ns:
        return ""
    return (
        f"{operators:,} operators take {format_time(launches)} to launch at {format_time(OPERATOR_NS)} each (published "
        f"for one machine), their kernels {format_time(kernels_ns)}; to simulate that the GPU waits for the host, add "
        f'--set node.host.launch="{_ROUNDED}"'
    )
