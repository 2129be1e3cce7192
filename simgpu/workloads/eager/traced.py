"""`trace_of_session` prices a session whose backward has run, and makes a trace with its saved tensors."""

from __future__ import annotations

from dataclasses import replace

from simgpu.hardware.spec import GpuSpec
from simgpu.trace.columns import LARGEST
from simgpu.trace.model import Trace, TraceInfo
from simgpu.workloads.eager.saved import saved_tensors
from simgpu.workloads.eager.session import Session
from simgpu.workloads.lowering.priced import trace_of_tape
from simgpu.workloads.timemodel.attention import FlashVersion
from simgpu.workloads.timemodel.model import time_model


def trace_of_session(session: Session, gpu: GpuSpec, info: TraceInfo, flash: FlashVersion) -> Trace | None:
    """The trace of an iteration, named after its model; None if it has more bytes or operations than a trace can hold.

    flash: the version of flash attention.

    Raises `InputError` if the GPU's description lacks values that the time model needs.
    """
    trace = trace_of_tape(session.tape, time_model(gpu, flash=flash), info, info.model)
    if max(*(kernel.flops or 0 for kernel in trace.kernels), *(block.bytes for block in trace.blocks)) > LARGEST:
        return None
    return replace(trace, saved=saved_tensors(session))
