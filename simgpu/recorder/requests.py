"""`record_requests`: what a training loop requests from the GPU's allocator; imports PyTorch only when called."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from simgpu.errors import InputError, MissingExtraError, did_you_mean
from simgpu.hardware.spec import GpuSpec
from simgpu.recorder.entry import as_out_of_memory, check_arguments, check_micro_batches
from simgpu.recorder.inputs import parse_inputs
from simgpu.trace.requests import MemoryRequests

DEFAULT_ITERATIONS = 3
#: Where the loop may call ``optimizer.zero_grad()``.
ZERO_GRAD = ("start", "before-backward", "end")


def record_requests(
    factory: str | Callable[..., Any],
    *,
    batch: int,
    gpu: str | Path | GpuSpec,
    optimizer: str | Callable[..., Any] = "sgd",
    iterations: int = DEFAULT_ITERATIONS,
    zero_grad: str = "start",
    hold_output: bool = False,
    grad_scaler: bool = False,
    micro_batches: int = 1,
    inputs: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> MemoryRequests:
    """Returns what a training loop would request from a GPU's allocator, without running on one.

    The loop moves the model to the GPU, creates the optimizer, and runs `iterations` steps with batches of one shape.
    Its names stay in scope, as in Python: the previous batch and loss live until the next are assigned.
    `simgpu.explain_allocations` shows what PyTorch's allocator does with the requests.

    factory, optimizer, inputs, grad_scaler, micro_batches, progress: as in `simgpu.record`. Optimizers use PyTorch's
        multi-tensor (foreach) operators, as on a GPU, unless they are created with ``foreach=False`` or ``fused=True``.
    batch: samples in each iteration.
    gpu: a shipped node, a node file, or a `GpuSpec`. Its architecture decides which operators run, and their workspaces
        (`simgpu.recorder.modelled.hidden`).
    zero_grad: where the loop calls ``optimizer.zero_grad()``: ``"start"`` of the iteration, ``"before-backward"``, so
        that gradients live through the next forward, or ``"end"``.
    hold_output: whether a name of the loop holds the model's output, as in ``output = model(x)``, until the next
        iteration assigns it.

    Raises `MissingExtraError` without PyTorch, and `InputError` as `simgpu.record` does.

    >>> record_requests("resnet20", batch=8, gpu="h100", zero_grad="never")
    Traceback (most recent call last):
    simgpu.errors.InputError: record: zero_grad: 'never' is not a place; known: before-backward, end, start
    """
    check_arguments(batch=batch, iterations=iterations, micro_batches=micro_batches)
    check_micro_batches(batch, micro_batches)
    if zero_grad not in ZERO_GRAD:
        what, remedy = f"{zero_grad!r} is not a place", did_you_mean(str(zero_grad), ZERO_GRAD)
        raise InputError.single("record", "zero_grad", what, remedy)
    specs = None if inputs is None else parse_inputs(inputs)
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("recording a model", "torch", "record")
    from simgpu.hardware.nodes import load_node
    from simgpu.recorder.loop.training import TrainingLoop, ZeroGrad
    from simgpu.recorder.modelled.session import ModelledSession

    session = ModelledSession(
        factory,
        batch,
        optimizer,
        gpu if isinstance(gpu, GpuSpec) else load_node(gpu).gpu,
        "",
        progress,
        hold_output=hold_output,
        grad_scaler=grad_scaler,
        inputs=specs,
        micro_batches=micro_batches,
    )
    try:
        return session.requests(TrainingLoop(iterations, ZeroGrad(zero_grad)))
    except Exception as error:
        shortage = as_out_of_memory(error, batch)
        if shortage is None:
            raise
        raise shortage from error
