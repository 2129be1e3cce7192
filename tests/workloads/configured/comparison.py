"""Compares modelled iterations of decoders with those that the recorder follows: kernels, peaks, saved tensors."""

from __future__ import annotations

from typing import Any

from simgpu.hardware.nodes import load_node
from simgpu.trace.model import Kernel, Phase, Trace
from simgpu.trace.stats import trace_stats
from simgpu.workloads.configured.config import decoder_of
from simgpu.workloads.configured.modelled import ModelledIteration, decoder_iteration
from simgpu.workloads.configured.options import TrainingOptions

BATCH, LENGTH = 2, 128


def built(values: dict[str, Any], length: int = LENGTH, **options: Any) -> ModelledIteration:
    chosen = TrainingOptions(**options)
    return decoder_iteration(decoder_of(values), batch=BATCH, length=length, gpu=load_node("h100").gpu, options=chosen)


def signature(kernel: Kernel, trace: Trace) -> tuple[object, ...]:
    """Operator, phase, sizes of what it reads and writes, and duration."""
    blocks = trace.block_by_id
    on_device = ([blocks[name] for name in names] for names in (kernel.reads, kernel.writes))
    reads, writes = (tuple(sorted(each.bytes for each in group if each.host_write is None)) for group in on_device)
    return kernel.op.rpartition("::")[2], kernel.phase, reads, writes, kernel.duration_ns


def assert_equal(mine: Trace, theirs: Trace) -> None:
    """Kernels of each phase, and the peak, but for numbers on the host."""
    for phase in Phase:
        kernels = [
            [signature(kernel, trace) for kernel in trace.kernels if kernel.phase is phase] for trace in (mine, theirs)
        ]
        assert kernels[0] == kernels[1], phase
    peaks = [trace_stats(trace) for trace in (mine, theirs)]
    assert peaks[0].peak_recorded is not None and peaks[1].peak_recorded is not None
    on_host = sum(block.bytes for block in theirs.blocks if block.host_write is not None)
    assert 0 <= peaks[1].peak_recorded.bytes - peaks[0].peak_recorded.bytes <= on_host


def assert_saved_alike(mine: Trace, theirs: Trace) -> None:
    """Saved tensors by their bytes, layer, and the numbers of the kernels."""
    rows = []
    for trace in (mine, theirs):
        number = {kernel.id: place for place, kernel in enumerate(trace.kernels)}
        rows.append(
            sorted(
                (
                    number.get(row.packed_after or "", -1),
                    number[row.unpacked_before or ""],
                    row.bytes,
                    row.shape,
                    number[row.unused_after or ""],
                    number[row.freed_after or ""],
                    row.layer,
                )
                for row in trace.saved
                if row.shape and not (row.layer or "loss").startswith("loss") and "ForCausalLM" not in (row.layer or "")
            )
        )
    assert rows[0] == rows[1]
