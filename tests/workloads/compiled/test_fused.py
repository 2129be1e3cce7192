"""Fused operators of a compiled step: their traffic counted by hand."""

from __future__ import annotations

from simgpu.trace.model import BlockKind, Kernel, Phase, Trace
from simgpu.workloads.compiled.fused import fused_durations
from simgpu.workloads.timemodel.model import Algorithm
from simgpu.workloads.timemodel.operation import Operation
from tests.semantics.hand_made import BACKWARD, block, held, kernel, trace

LONG = 10**6


class OneByteANanosecond:
    """Prices of a GPU that moves one byte in a nanosecond."""

    def duration_ns(self, operation: Operation) -> int:
        return operation.bytes

    def algorithms(self, operation: Operation) -> tuple[Algorithm, ...]:
        return ()


def step(**durations: int) -> Trace:
    """Two products with three fusible operators between them, and two of backward."""

    def run(name: str, op: str, reads: str, writes: str, phase: Phase = Phase.FORWARD) -> Kernel:
        return kernel(name, durations.get(name, LONG), reads, writes, phase=phase, op=op)

    return trace(
        [
            run("p", "aten::mm", "x", "a"),
            run("silu", "aten::silu", "a", "b"),
            run("mul", "aten::mul", "b w", "c"),
            run("norm", "aten::native_layer_norm", "c", "d"),
            run("q", "aten::mm", "d", "e"),
            run("add", "aten::add", "e c", "f"),
            run("back", "aten::mul", "e", "g", BACKWARD),
            run("sum", "aten::sum", "g", "h", BACKWARD),
        ],
        [
            held("x", 1, kind=BlockKind.INPUT),
            held("w", 20, kind=BlockKind.WEIGHT),
            *(block(name, size) for name, size in zip("abcdefg", (300, 4000, 50_000, 600, 7, 8, 9000), strict=True)),
            block("h", 11, kind=BlockKind.WEIGHT_GRADIENT, release="end"),
        ],
    )


def test_a_row_reads_what_came_before_it_and_writes_what_is_used_after_it() -> None:
    """b and g stay inside their rows; c is read after its row by another; one operator alone is not fused."""
    durations = fused_durations(step(), OneByteANanosecond(), lambda _: "all")
    first, second = 300 + 20 + 50_000 + 600, 7 + 11
    assert durations == [LONG, first, 0, 0, LONG, LONG, second, 0]


def test_a_row_takes_no_longer_than_its_operators_one_by_one() -> None:
    durations = fused_durations(step(silu=1, mul=2, norm=3), OneByteANanosecond(), lambda _: "all")
    assert durations[1:4] == [6, 0, 0]


def test_rows_end_where_a_graph_ends_and_what_is_not_compiled_is_unchanged() -> None:
    built = step()
    apart = fused_durations(built, OneByteANanosecond(), lambda kernel: kernel.id == "norm" or "rest")
    assert apart[1:4] == [300 + 20 + 50_000, 0, LONG]
    assert fused_durations(built, OneByteANanosecond(), lambda _: None) == [each.duration_ns for each in built.kernels]
