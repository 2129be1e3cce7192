"""Calibrates a case: from its machine and plain run to the trace and node that all its counterparts are simulated with.

* Kernels last as long as in the plain run's timeline, each with the gap after it. The gaps are scaled so that the sum
  is the median plain step: profiling makes gaps longer. So the simulated plain step equals the measured one by
  construction. Host time for launches is part of the gaps and is not added again.
* Copies have the bandwidths measured one direction at a time. The link is full duplex or shares the larger bandwidth,
  whichever is closer to the bandwidths measured with both directions busy.
* An asynchronous copy has the measured latency. A blocking copy takes as long as a measured blocking copy of 4 bytes,
  plus its bytes over the bandwidth; afterwards a GPU idles until the host has launched the next kernel. `save_on_cpu`
  queues host-to-device copies, and blocks on device-to-host copies in some versions
  (`MeasuredMachine.blocking_save_on_cpu`). A link has one latency for both directions and there are equally many copies
  in both, so each gets the mean: the sum is right, the position within the step is not. On a CPU the host is the
  device, and both directions block.
* Device memory allocated at the start of a step, beyond the persistent blocks of the trace, is reserved throughout.

The time of a kernel is that of its operator call on the device and the gap until the next matched call. A call without
a kernel in the trace is part of such a gap. The time before the first matched call belongs to the last one's gap, since
steps follow one another. Where calls overlap, the common time belongs to the earlier one. If the calls alone are longer
than the median step, they are scaled and there are no gaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import log

from simgpu.errors import InputError
from simgpu.hardware.spec import Duplex, GpuSpec, LinkSpec, NodeSpec
from simgpu.machine.flows import max_min_rates
from simgpu.trace.entries import apportioned
from simgpu.trace.model import Trace
from simgpu.units import format_bytes, format_time
from simgpu.validation.measured import Copies, MeasuredMachine, MeasuredRun, MeasuredSpan
from simgpu.validation.timelines.matching import Matching, match, matching_text


@dataclass(frozen=True, slots=True)
class Calibration:
    """The trace and node that the counterparts of a case are simulated with.

    trace: with durations that add up to the plain step.
    node: for asynchronous copies.
    blocking_node: for blocking copies.
    reserved: bytes of device memory allocated throughout that the trace does not list; negative if the trace lists more
        persistent memory than was allocated.
    times_text, reserved_text: the sources of durations and reserved memory.
    unmatched: number of kernels without a call in the plain timeline, which take no time.
    """

    trace: Trace
    node: NodeSpec
    blocking_node: NodeSpec
    reserved: int
    times_text: str
    reserved_text: str
    unmatched: int


def calibrate(machine: MeasuredMachine, trace: Trace, plain: MeasuredRun) -> Calibration:
    """Calibrates a case; uses no managed run.

    Without a timeline of the plain run, the trace's own durations are scaled to the step. Raises `InputError` if no
    kernel of the trace is in the timeline, or if there is no timeline and no kernel takes time.

    >>> from simgpu.trace.chain import chain
    >>> from simgpu.validation.measured import Method
    >>> copies = Copies(10**9, 10**9, 9 * 10**8, 9 * 10**8, latency_ns=10, blocking_ns=80)
    >>> machine = MeasuredMachine("a GPU", "cuda", 2**30, 512, 2, copies, 5, "a CPU", "2026-01-31")
    >>> plain = MeasuredRun(Method.PLAIN, {}, step_ns=(30, 31, 90), peak_bytes=2048, initial_bytes=1536, d2h_bytes=0,
    ...     h2d_bytes=0)
    >>> calibration = calibrate(machine, chain([5], [10], [1000]), plain)
    >>> [kernel.duration_ns for kernel in calibration.trace.kernels], calibration.reserved
    ([10, 21], 512)
    >>> calibration.node.link.latency_ns, calibration.blocking_node.link.latency_ns, calibration.node.link.duplex.value
    (10, 47, 'full')
    """
    times, times_text, unmatched = _durations(trace, plain)
    reserved = plain.initial_bytes - persistent_bytes(trace, machine.alignment)
    node = _node(machine, max(reserved, 0))
    return Calibration(
        # Recorded starts and alternative algorithms belong to another run.
        trace=replace(
            trace,
            kernels=tuple(
                replace(kernel, duration_ns=time, start_ns=None, iqr_ns=None)
                for kernel, time in zip(trace.kernels, times, strict=True)
            ),
            algorithms=(),
        ),
        node=node,
        blocking_node=replace(node, link=replace(node.link, latency_ns=blocking_latency(machine))),
        reserved=reserved,
        times_text=times_text,
        reserved_text=_reserved_text(reserved),
        unmatched=unmatched,
    )


def blocking_latency(machine: MeasuredMachine) -> int:
    """Latency of each copy of `save_on_cpu`, the mean of both directions, nanoseconds.

    >>> copies = Copies(25, 24, 20, 19, latency_ns=2_000, blocking_ns=14_000)
    >>> machine = MeasuredMachine("a GPU", "cuda", 2**30, 512, 2, copies, 4_000, "a CPU", "2026-01-31")
    >>> blocking_latency(machine), blocking_latency(replace(machine, kind="cpu"))
    (10000, 14000)
    >>> blocking_latency(replace(machine, blocking_save_on_cpu=False))
    2000
    """
    copies = machine.copies
    if machine.kind == "cpu":
        return copies.blocking_ns
    if not machine.blocking_save_on_cpu:
        return copies.latency_ns
    return (copies.blocking_ns + machine.launch_ns + copies.latency_ns) // 2


def duplex_of(copies: Copies) -> Duplex:
    """The duplex model closest to the measured bidirectional bandwidths, by the sum of log ratios.

    >>> duplex_of(Copies(d2h=25, h2d=24, bidirectional_d2h=20, bidirectional_h2d=19, latency_ns=0, blocking_ns=0)).value
    'full'
    >>> duplex_of(Copies(d2h=25, h2d=24, bidirectional_d2h=14, bidirectional_h2d=13, latency_ns=0, blocking_ns=0)).value
    'half'
    """
    return min(Duplex, key=lambda duplex: _distance(copies, duplex))  # the first of equals: full


def bidirectional_bandwidths(copies: Copies, duplex: Duplex) -> tuple[int, int]:
    """Modelled bytes per second (D2H, H2D) of two large copies in both directions at once."""
    if duplex is Duplex.FULL:
        return copies.d2h, copies.h2d
    d2h, h2d = max_min_rates([("link",), ("link",)], [copies.d2h, copies.h2d], {"link": max(copies.d2h, copies.h2d)})
    return d2h, h2d


def persistent_bytes(trace: Trace, alignment: int) -> int:
    """Bytes of a trace's persistent blocks, each rounded up to the allocator's alignment."""
    return sum(-(-block.bytes // alignment) * alignment for block in trace.blocks if block.persistent)


def _durations(trace: Trace, plain: MeasuredRun) -> tuple[Sequence[int], str, int]:
    step = f"the median plain step, {format_time(plain.median_ns)}"
    if not plain.spans:
        times = [kernel.duration_ns for kernel in trace.kernels]
        if not sum(times):
            raise InputError.single(trace.name, "kernels", "no kernel takes time", "record the case again")
        text = f"from the trace, without a timeline of the plain run, scaled to {step}"
        return apportioned(times, plain.median_ns), text, 0
    matching = match(plain.spans, [kernel.op for kernel in trace.kernels])
    text = f"from the plain run's timeline, gaps scaled to {step}"
    if not matching.is_complete:
        text += f". {matching_text(matching).removesuffix('.')}"
    return durations(plain.spans, matching, plain.median_ns), text, len(matching.unmatched_positions)


def _node(machine: MeasuredMachine, reserved: int) -> NodeSpec:
    copies = machine.copies
    gpu = GpuSpec(
        machine.device,
        memory=machine.memory,
        copy_engines=machine.copy_engines,
        alignment=machine.alignment,
        reserved=reserved,
    )
    link = LinkSpec("measured", copies.d2h, copies.h2d, copies.latency_ns, duplex_of(copies))
    return NodeSpec(machine.device, gpu, link)


def _reserved_text(reserved: int) -> str:
    if reserved < 0:
        return f"the trace lists {format_bytes(-reserved)} more persistent memory than a step starts with"
    return f"{format_bytes(reserved)} allocated at the start of a step beyond the trace's persistent blocks"


def _distance(copies: Copies, duplex: Duplex) -> float:
    d2h, h2d = bidirectional_bandwidths(copies, duplex)
    return abs(log(copies.bidirectional_d2h / max(d2h, 1))) + abs(log(copies.bidirectional_h2d / max(h2d, 1)))


def durations(spans: Iterable[MeasuredSpan], matching: Matching, step_ns: int) -> tuple[int, ...]:
    """Durations of the expected kernels, in order, with a sum of `step_ns`; 0 for `Matching.unmatched_positions`.

    spans: the matched timeline.
    step_ns: time of a step without profiling.

    Raises `InputError` if no kernel has a call.

    >>> from simgpu.validation.measured import MeasuredKind
    >>> from simgpu.validation.timelines.matching import match
    >>> ops = (("aten::mm", 0, 10), ("aten::relu", 14, 20), ("aten::sum", 26, 30))
    >>> spans = [MeasuredSpan("compute", MeasuredKind.KERNEL, "", op, n, *at) for n, (op, *at) in enumerate(ops)]
    >>> durations(spans, match(spans, [op for op, *_ in ops]), 25)  # 20 of calls, gaps of 4 and 6 become 2 and 3
    (12, 9, 4)
    """
    if not matching.pairs:
        message = "no operator call on the device matches a kernel of the trace"
        remedy = "record trace and timeline of the same model and device"
        raise InputError.single("", "kernel timeline", message, remedy)
    busy, gaps = _busy_and_gaps(tuple(spans), matching)
    rest = step_ns - sum(busy)
    if rest < 0:
        busy, gaps, rest = [0] * len(busy), busy, step_ns
    elif not any(gaps):
        gaps[-1] = 1  # the remaining time lies between two steps
    times = [0] * len(matching.expected)
    for (_, position), device, gap in zip(matching.pairs, busy, apportioned(gaps, rest), strict=True):
        times[position] = device + gap
    return tuple(times)


def _busy_and_gaps(spans: Sequence[MeasuredSpan], matching: Matching) -> tuple[list[int], list[int]]:
    """The device time of each matched call, and the gap after it, without overlaps."""
    begin, end = min(span.start_ns for span in spans), max(span.end_ns for span in spans)
    matched = [matching.calls[index] for index, _ in matching.pairs]
    ends = list(accumulate((call.end_ns for call in matched), max))
    starts = [call.start_ns if not index else max(call.start_ns, ends[index - 1]) for index, call in enumerate(matched)]
    next_starts = [*starts[1:], end + starts[0] - begin]
    busy = [call_end - start for start, call_end in zip(starts, ends, strict=True)]
    return busy, [next_start - call_end for next_start, call_end in zip(next_starts, ends, strict=True)]
