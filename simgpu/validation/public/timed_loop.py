"""The time of a step of a published row's loop: modelled kernels, launched one by one by the host."""

from __future__ import annotations

import datetime
from functools import partial

from simgpu.hardware.nodes import load_node
from simgpu.recorder.modelled.session import ModelledSession
from simgpu.validation.public.loop import Loop
from simgpu.validation.public.trainer import waits
from simgpu.workloads.timemodel.host import step_ns
from simgpu.workloads.timemodel.model import Products, time_model


def time_of(loop: Loop, node: str) -> tuple[int, int, int]:
    """Nanoseconds of a step and of its kernels on a node's GPU, and its samples."""
    samples = loop.sequences * loop.micro_batches
    trace = ModelledSession(
        loop.factory,
        samples,
        loop.optimizer,
        load_node(node).gpu,
        datetime.date.today().isoformat(),
        lambda _: None,
        time_model=partial(time_model, products=Products.MEASURED),
        hold_output=loop.hold_output,
        grad_scaler=loop.grad_scaler,
        micro_batches=loop.micro_batches,
    ).run()
    durations = [kernel.duration_ns for kernel in trace.kernels]
    return step_ns(durations, waits(trace)), sum(durations), samples
