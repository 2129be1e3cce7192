"""From a measured machine and the plain run of a case to the trace and the node that all its counterparts are
simulated with.

What is calibrated, and to what:

* Kernels last as long as in the plain run's timeline, each with the gap behind it, and gaps are scaled so that the sum
  is the median plain step. So the plain step comes out as it was measured, and says nothing of the simulator. What the
  host needs for launches lies in those gaps; it is not added once more.
* Copies have the bandwidths that were measured one way at a time. Whether both ways at once are in each other's way is
  one of two things in the model of a link: not at all, or they share the larger bandwidth. The one that is nearer to
  what was measured with both ways busy is taken, and the text says which.
* A copy that nobody waits for has the latency that was measured. One that the host waits for takes what a blocking copy
  of next to nothing took, and then its bytes. Behind it a GPU has nothing to do until the host has launched the next
  kernel, which takes one launch. PyTorch's `save_on_cpu` queues copies in, and the host waits for copies out in some
  versions (`MeasuredMachine.saving_waits`). As a link has one latency for both ways, and there are as many of the one
  as of the other, each is then given the mean of both: the sum is right, its place within the step is not. On a CPU the
  host is the device, and waits for both.
* Device memory that is held when a step begins, beyond the persistent blocks of the trace, is held all the time.

How long each expected kernel holds up its step, from what the device did in one.

A kernel's time is that of its call on the device and the gap behind it, until the next call that was expected begins.
A call that nobody expected is part of such a gap. What lies before the first expected call is part of the last one's
gap: steps follow one another. Where calls overlap, the common time is that of the one that began first.

The step whose timeline is known ran while it was watched, which makes the gaps longer. So the calls keep their times,
and the gaps are scaled until the whole is as long as a step that nobody watched; where even the calls alone are longer
than that, they are scaled and there are no gaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import log

from simgpu.errors import InputError
from simgpu.hardware.spec import Duplex, GpuSpec, LinkSpec, NodeSpec
from simgpu.machine.flows import max_min_rates
from simgpu.trace.model import Trace
from simgpu.units import format_bytes, format_time
from simgpu.validation.measured import Copies, MeasuredMachine, MeasuredRun, MeasuredSpan
from simgpu.validation.timelines.matching import Matching, match, matching_text


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the counterparts of a case are simulated with.

    trace: with durations that sum up to the plain step. node: for copies that nobody waits for. blocking_node: the same
    where the host waits for each copy. held: bytes of device memory that are in use all the time and that the trace
    does not list; negative where it lists as persistent what the allocator had not handed out. times_recorded,
    held_noted: how durations and held memory were found. unmatched: kernels of the trace that take no time, since the
    plain timeline has no call of theirs.
    """

    trace: Trace
    node: NodeSpec
    blocking_node: NodeSpec
    held: int
    times_recorded: str
    held_noted: str
    unmatched: int


def calibrate(machine: MeasuredMachine, trace: Trace, plain: MeasuredRun) -> Calibration:
    """The calibration of a case: from its machine, its trace and its plain run, and from nothing else.

    Without a timeline of the plain run, the trace's own durations are scaled to the step. Raises `InputError` where no
    kernel of the trace is in the timeline, or without one takes time.

    >>> from simgpu.trace.chain import chain
    >>> from simgpu.validation.measured import Method
    >>> copies = Copies(d2h=10**9, h2d=10**9, both_d2h=9 * 10**8, both_h2d=9 * 10**8, latency_ns=10, blocking_ns=80)
    >>> machine = MeasuredMachine("a GPU", "cuda", 2**30, 512, 2, copies, 5, "a CPU", "2026-01-31")
    >>> plain = MeasuredRun(Method.PLAIN, {}, step_ns=(30, 31, 90), peak_bytes=2048, held_bytes=1536, d2h_bytes=0,
    ...     h2d_bytes=0)
    >>> result = calibrate(machine, chain([5], [10], [1000]), plain)
    >>> [kernel.duration_ns for kernel in result.trace.kernels], result.held
    ([10, 21], 512)
    >>> result.node.link.latency_ns, result.blocking_node.link.latency_ns, result.node.link.duplex.value
    (10, 47, 'full')
    """
    times, times_recorded, unmatched = _durations(trace, plain)
    held = plain.held_bytes - persistent_bytes(trace, machine.alignment)
    node = _node(machine, max(held, 0))
    return Calibration(
        # Recorded starts and alternative algorithms are of another clock.
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
        held=held,
        times_recorded=times_recorded,
        held_noted=_held_text(held),
        unmatched=unmatched,
    )


def blocking_latency(machine: MeasuredMachine) -> int:
    """Nanoseconds that each copy of `save_on_cpu` takes next to its bytes, where copies out and in take the same.

    >>> copies = Copies(d2h=25, h2d=24, both_d2h=20, both_h2d=19, latency_ns=2_000, blocking_ns=14_000)
    >>> machine = MeasuredMachine("a GPU", "cuda", 2**30, 512, 2, copies, 4_000, "a CPU", "2026-01-31")
    >>> blocking_latency(machine), blocking_latency(replace(machine, kind="cpu"))
    (10000, 14000)
    >>> blocking_latency(replace(machine, saving_waits=False))
    2000
    """
    copies = machine.copies
    if machine.kind == "cpu":
        return copies.blocking_ns
    if not machine.saving_waits:
        return copies.latency_ns
    return (copies.blocking_ns + machine.launch_ns + copies.latency_ns) // 2


def duplex_of(copies: Copies) -> Duplex:
    """Which model of both ways at once is nearer to the measurement: by the sum of both logarithms' distances.

    >>> duplex_of(Copies(d2h=25, h2d=24, both_d2h=20, both_h2d=19, latency_ns=0, blocking_ns=0)).value
    'full'
    >>> duplex_of(Copies(d2h=25, h2d=24, both_d2h=14, both_h2d=13, latency_ns=0, blocking_ns=0)).value
    'half'
    """
    return min(Duplex, key=lambda duplex: _distance(copies, duplex))  # the first of equals: full


def at_once(copies: Copies, duplex: Duplex) -> tuple[int, int]:
    """Bytes per second out and in that the model gives two large copies which meet on the link."""
    if duplex is Duplex.FULL:
        return copies.d2h, copies.h2d
    d2h, h2d = max_min_rates([("link",), ("link",)], [copies.d2h, copies.h2d], {"link": max(copies.d2h, copies.h2d)})
    return d2h, h2d


def persistent_bytes(trace: Trace, alignment: int) -> int:
    """Device memory that a trace's persistent blocks take as the allocator rounds them, bytes."""
    return sum(-(-block.bytes // alignment) * alignment for block in trace.blocks if block.persistent)


def _durations(trace: Trace, plain: MeasuredRun) -> tuple[Sequence[int], str, int]:
    step = f"the median plain step, {format_time(plain.median_ns)}"
    if not plain.spans:
        times = [kernel.duration_ns for kernel in trace.kernels]
        if not sum(times):
            raise InputError.single(trace.name, "kernels", "no kernel takes time", "record the case again")
        text = f"without a timeline of the plain run, the trace's own times, scaled to {step}"
        return dealt(plain.median_ns, times), text, 0
    result = match(plain.spans, [kernel.op for kernel in trace.kernels])
    text = f"of the plain run's timeline, their gaps scaled to {step}"
    if not result.is_complete:
        text += f". {matching_text(result).removesuffix('.')}"
    return durations(plain.spans, result, plain.median_ns), text, len(result.unmatched_positions)


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


def _held_text(held: int) -> str:
    if held < 0:
        return f"the trace lists {format_bytes(-held)} as persistent that were not in use when a step began"
    return f"{format_bytes(held)} were in use when a step began, beyond the trace's persistent blocks"


def _distance(copies: Copies, duplex: Duplex) -> float:
    d2h, h2d = at_once(copies, duplex)
    return abs(log(copies.both_d2h / max(d2h, 1))) + abs(log(copies.both_h2d / max(h2d, 1)))


def durations(spans: Iterable[MeasuredSpan], matching: Matching, step_ns: int) -> tuple[int, ...]:
    """Nanoseconds of each expected kernel, in order, that add up to `step_ns`; 0 for one without a call.

    spans: the timeline that was matched. step_ns: a step that nobody watched. Which kernels have no call, tells
    `Matching.unmatched_positions`. Raises `InputError` where none has one.

    >>> from simgpu.validation.measured import MeasuredKind
    >>> from simgpu.validation.timelines.matching import match
    >>> ops = (("aten::mm", 0, 10), ("aten::relu", 14, 20), ("aten::sum", 26, 30))
    >>> spans = [MeasuredSpan("compute", MeasuredKind.KERNEL, "", op, n, *at) for n, (op, *at) in enumerate(ops)]
    >>> durations(spans, match(spans, [op for op, *_ in ops]), 25)  # 20 of calls, gaps of 4 and 6 become 2 and 3
    (12, 9, 4)
    """
    if not matching.pairs:
        what = "no call of an operator on the device is a kernel of the trace"
        raise InputError.single("", "kernel timeline", what, "record trace and timeline of the same model and device")
    busy, gaps = _busy_and_gaps(tuple(spans), matching)
    rest = step_ns - sum(busy)
    if rest < 0:
        busy, gaps, rest = [0] * len(busy), busy, step_ns
    elif not any(gaps):
        gaps[-1] = 1  # what was not seen lies between two steps
    result = [0] * len(matching.expected)
    for (_, position), device, gap in zip(matching.pairs, busy, dealt(rest, gaps), strict=True):
        result[position] = device + gap
    return tuple(result)


def _busy_and_gaps(spans: Sequence[MeasuredSpan], matching: Matching) -> tuple[list[int], list[int]]:
    """Of each matched call, its time on the device and the gap behind it."""
    begin, end = min(span.start_ns for span in spans), max(span.end_ns for span in spans)
    matched = [matching.calls[place] for place, _ in matching.pairs]
    until = list(accumulate((call.end_ns for call in matched), max))
    free = [call.start_ns if not place else max(call.start_ns, until[place - 1]) for place, call in enumerate(matched)]
    following = [*free[1:], end + free[0] - begin]
    busy = [over - start for start, over in zip(free, until, strict=True)]
    return busy, [after - over for after, over in zip(following, until, strict=True)]


def dealt(total: int, weights: Sequence[int]) -> list[int]:
    """A whole number dealt out in proportion to weights, by largest remainder; of equal remainders the first is larger.

    >>> dealt(10, [1, 1, 1])
    [4, 3, 3]
    """
    outcome = sum(weights)
    if not outcome:
        return [0] * len(weights)
    shares = [divmod(total * weight, outcome) for weight in weights]
    left = total - sum(share for share, _ in shares)
    larger = set(sorted(range(len(weights)), key=lambda place: -shares[place][1])[:left])
    return [share + (place in larger) for place, (share, _) in enumerate(shares)]
