"""What a trace says of how it was modelled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from simgpu.hardware.spec import GpuSpec
from simgpu.recorder.modelled.fake_tensors import FakeTensors
from simgpu.recorder.modelled.operations import OperatorWork
from simgpu.recorder.notes import KernelNote
from simgpu.recorder.workload import Workload, cross_entropy_of_scores
from simgpu.workloads.configured.experts import ROUTING_NOTE
from simgpu.workloads.timemodel.formats import model_notes


def modelling_notes(
    gpu: GpuSpec, kernels: Sequence[KernelNote], calls: Sequence[OperatorWork], as_on_gpu: bool = True
) -> str:
    """Describes what is modelled. calls: the work of each operator call."""
    form = " (dropout, attention, optimizer: in the form they have on CUDA)" if as_on_gpu else ""
    notes = (
        "Nothing ran: operators, layers, blocks, sizes and lifetimes are PyTorch's own on tensors without "
        f"memory{form}; durations, algorithms and workspaces are modelled for {gpu.name}."
    )
    priced = (operation for kernel in kernels for operation in calls[kernel.call].operations)
    formats = {operation.dtype for operation in priced if operation.is_product}
    notes = " ".join((notes, *model_notes(gpu, formats)))
    unknown = sorted({kernel.op for kernel in kernels if not calls[kernel.call].is_known})
    if unknown:
        notes += f" Modelled by the bytes they move alone, as nothing else is known of them: {', '.join(unknown)}."
    return notes


def assumed_values(mode: FakeTensors) -> str:
    """Describes the values that were assumed because they do not exist."""
    notes = ""
    if mode.finite.scaled:
        notes += " Gradients are scaled (torch.amp.GradScaler) and taken to be finite: no step is skipped."
    if mode.finite.guarded:
        notes += " Checks for NaN and infinity find none."
    if mode.took_as_one:
        notes += " Optimizer or loop read values of tensors, which do not exist; they are taken to be one."
    return "".join((notes, *(f" {note}" for note in balanced(mode))))


def balanced(mode: FakeTensors) -> Iterator[str]:
    """Yields what a router is taken to choose, if a module has asked."""
    if mode.mixtures.is_used:
        yield ROUTING_NOTE.strip()


def assumed_loss(workload: Workload) -> Iterator[str]:
    """Yields what the loss is, where the factory gives none."""
    if workload.loss is cross_entropy_of_scores:
        yield "Loss: cross-entropy of random labels, because the factory returns no loss."


def uncounted_memory(*parts: object) -> Iterator[str]:
    """Yields what the modelled memory of these modules leaves out; parts that are no modules are ignored."""
    modules = [module for part in parts if isinstance(part, nn.Module) for module in part.modules()]
    if recurrent := sorted({type(module).__name__ for module in modules if isinstance(module, nn.RNNBase)}):
        yield f"{', '.join(recurrent)}: modelled step by step; cuDNN runs all steps at once, with memory of its own."
    if torch.backends.cudnn.benchmark:
        yield "torch.backends.cudnn.benchmark is on: the workspaces of the algorithms that cuDNN tries are not counted."
