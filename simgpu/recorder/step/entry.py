"""`record_step`: records a step of a training loop of the user's own; imports PyTorch only when called."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simgpu.errors import InputError, MissingExtraError
from simgpu.hardware.spec import GpuSpec
from simgpu.recorder.step.recording import StepRecording

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


def record_step(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer] = (),
    *,
    gpu: str | Path | GpuSpec | None = None,
) -> AbstractContextManager[StepRecording]:
    """Records what runs in its context: a training step as your own loop has it.

        with simgpu.record_step(model, optimizer, gpu="h100") as recording:
            for _ in range(2):
                optimizer.zero_grad()
                model(**batch).loss.backward()
                optimizer.step()
        simgpu.explain_allocations(recording.requests).reserved

    Autocast, gradient accumulation, clipping, several optimizers and nested inputs are recorded as they run. Operators
    have the path of their module, and the line that runs them. What ``torch.compile`` compiles runs operator by
    operator, in graphs that PyTorch's partitioner has split for TorchInductor; fused, it takes less time.

    model: the module that the step calls. Its device is the one that is recorded.
    optimizer: the optimizer or optimizers that the step uses.
    gpu: a shipped node, a node file, or a `GpuSpec`: nothing is computed or allocated then, as with `simgpu.record`.
        The model may be on any device, also on ``meta``, where it needs no memory; tensors of the step may be on
        ``cuda`` although there is none. Model and optimizer are as before when the context ends, also if it fails.

    Without `gpu`, the step runs, and its operators have the durations of this one run. With `gpu`, run two steps in the
    context: the optimizer's state exists from the first on. Then tensors from before the context are on the host until
    they are moved or used; create a gradient scaler inside; and numbers that the loop reads (``loss.item()``) are one.
    Checks for NaN and infinity find none, and ``torch.save`` writes nothing.

    Raises `MissingExtraError` without PyTorch, and `InputError` as `simgpu.record` does.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("recording a step", "torch", "record")
    from torch import nn, optim

    if not isinstance(model, nn.Module):
        raise InputError.single("record_step", "model", f"it is {_kind(model)}, not a module", "give a torch.nn.Module")
    optimizers = [optimizer] if isinstance(optimizer, optim.Optimizer) else list(optimizer)
    wrong = [each for each in optimizers if not isinstance(each, optim.Optimizer)]
    if wrong:
        remedy = "give one torch.optim.Optimizer, or a list of them"
        raise InputError.single("record_step", "optimizer", f"it is {_kind(wrong[0])}", remedy)
    from simgpu.hardware.nodes import load_node
    from simgpu.recorder.step.session import record_fake_step, record_real_step

    if gpu is None:
        return record_real_step(model, optimizers)
    return record_fake_step(model, optimizers, gpu if isinstance(gpu, GpuSpec) else load_node(gpu).gpu)


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"
