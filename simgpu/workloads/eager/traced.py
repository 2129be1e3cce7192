"""`trace_of_session` prices a session whose backward has run, and makes a trace with its saved tensors."""

from __future__ import annotations

from dataclasses import replace

from simgpu.trace.columns import LARGEST
from simgpu.trace.model import Trace, TraceInfo
from simgpu.workloads.eager.saved import saved_tensors
from simgpu.workloads.eager.session import Session
from simgpu.workloads.lowering.priced import trace_of_tape
from simgpu.workloads.timemodel.model import TimeModel


def trace_of_session(session: Session, prices: TimeModel, info: TraceInfo) -> Trace | None:
    """The trace of an iteration, named after its model; None if it has more bytes or operations than a trace can hold.

    prices: the time model of its GPU.
    """
    trace = trace_of_tape(session.tape, prices, info, info.model)
    if max(*(kernel.flops or 0 for kernel in trace.kernels), *(block.bytes for block in trace.blocks)) > LARGEST:
        return None
    return replace(trace, saved=saved_tensors(session))
