"""`trace_of_iteration` prices an iteration on a tape, and makes a trace with what autograd saved in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simgpu.trace.columns import LARGEST
from simgpu.trace.model import SavedTensor, Trace, TraceInfo
from simgpu.workloads.lowering.priced import trace_of_tape
from simgpu.workloads.lowering.tape import Tape
from simgpu.workloads.timemodel.model import TimeModel


def trace_of_iteration(tape: Tape, saved: Sequence[SavedTensor], prices: TimeModel, info: TraceInfo) -> Trace | None:
    """The trace of an iteration, named after its model; None if it has more bytes or operations than a trace can hold.

    prices: the time model of its GPU.
    """
    trace = trace_of_tape(tape, prices, info, info.model)
    if max(*(kernel.flops or 0 for kernel in trace.kernels), *(block.bytes for block in trace.blocks)) > LARGEST:
        return None
    return replace(trace, saved=tuple(saved))
