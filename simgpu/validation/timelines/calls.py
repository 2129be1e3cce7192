"""Calls of operators: what the compute stream did, by the call that launched it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from simgpu.validation.measured import MeasuredKind, MeasuredSpan


class Call(NamedTuple):
    """One call of an operator on the device: from its first kernel's start to its last one's end, ns.

    number: as its spans have it. name: of its first kernel. What the device waits for inside a call belongs to it.
    """

    number: int
    op: str
    name: str
    start_ns: int
    end_ns: int


def calls_of(spans: Iterable[MeasuredSpan]) -> tuple[Call, ...]:
    """The calls of a timeline in the order they began.

    >>> kernel = MeasuredKind.KERNEL
    >>> spans = [MeasuredSpan("compute", kernel, name, "aten::mm", 0, at, at + 2) for name, at in (("a", 0), ("b", 5))]
    >>> calls_of(spans)
    (Call(number=0, op='aten::mm', name='a', start_ns=0, end_ns=7),)
    """
    calls: dict[int, Call] = {}
    for span in sorted(spans, key=lambda span: (span.start_ns, span.end_ns)):
        if span.kind is not MeasuredKind.KERNEL:
            continue
        call = calls.setdefault(span.call, Call(span.call, span.op, span.name, span.start_ns, span.end_ns))
        calls[span.call] = call._replace(end_ns=max(call.end_ns, span.end_ns))
    return tuple(calls.values())


def same_work(op: str) -> str:
    """What is equal of two operators that do the same work: the name but for the mark of working in place.

    PyTorch works in place where it can, for example when it adds gradients up, and does not while operators are
    intercepted, as a recorder does. The kernel is the same.

    >>> same_work("aten::add_") == same_work("aten::add")
    True
    """
    return op.removesuffix("_")
