"""Measured timelines made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from simgpu.simulation.result import Result
from simgpu.validation.measured import MeasuredKind, MeasuredSpan

_COPIES = {"copy_d2h": ("d2h", MeasuredKind.COPY_D2H), "copy_h2d": ("h2d", MeasuredKind.COPY_H2D)}


def kernel(op: str, call: int, start: int, end: int) -> MeasuredSpan:
    return MeasuredSpan("compute", MeasuredKind.KERNEL, f"{op}_kernel", op, call, start, end)


def one_after_another(ops: Sequence[str]) -> list[MeasuredSpan]:
    """Each call one kernel of 2 ns, with 1 ns between them."""
    return [kernel(op, call, 3 * call, 3 * call + 2) for call, op in enumerate(ops)]


def as_if_measured(result: Result) -> list[MeasuredSpan]:
    """The last simulated iteration, as a device would show it that ran exactly like that."""
    last = result.iterations - 1
    stored = [span for span in result.timeline if span.iteration == last and not span.kind.is_stall]
    begin = min(span.start_ns for span in stored)
    return list(_measured(result, stored, begin))


def _measured(result: Result, iterable: Iterable, begin: int) -> Iterable[MeasuredSpan]:  # type: ignore[type-arg]
    ops = {each.id: each.op for each in result.graph.kernels}
    for call, span in enumerate(iterable):
        start, end = span.start_ns - begin, span.end_ns - begin
        if span.label in _COPIES:
            stream, kind = _COPIES[span.label]
            yield MeasuredSpan(stream, kind, "Memcpy", "", -1, start, end, span.bytes)
        else:
            yield kernel(ops[span.name], call, start, end)
