"""Builds modelled traces of networks: `build_trace` by zoo name, `trace_of` for any network."""

from __future__ import annotations

from simgpu.errors import InputError, did_you_mean
from simgpu.hardware.spec import GpuSpec
from simgpu.trace.columns import LARGEST
from simgpu.trace.model import Origin, OutputLife, Trace, TraceInfo
from simgpu.units import format_bytes
from simgpu.version import __version__
from simgpu.workloads.catalogue import NETWORKS, Value, build
from simgpu.workloads.lowering.entry import lower
from simgpu.workloads.lowering.framework import Framework
from simgpu.workloads.lowering.optimizer import UPDATES, Optimizer
from simgpu.workloads.network import Network
from simgpu.workloads.timemodel.formats import model_notes
from simgpu.workloads.timemodel.model import time_model
from simgpu.workloads.timemodel.prices import WORKSPACE_LIMIT

#: Larger batches are typing errors and may overflow the time model.
_MOST_SAMPLES = 2**40


def build_trace(
    name: str,
    *,
    batch: int,
    gpu: GpuSpec,
    input: str | None = None,
    optimizer: str = "sgd",
    workspace_limit: int = WORKSPACE_LIMIT,
    task_limit: int | None = None,
    framework: str = "pytorch",
    **variant: Value,
) -> Trace:
    """One training iteration of a network of the zoo, modelled for a GPU.

    batch: samples.
    input, variant: see `simgpu.workloads.catalogue.build`.
    optimizer: sgd (with momentum), plain-sgd (without), adam, adamw or adamw-fused.
    workspace_limit: largest workspace of a convolution algorithm, bytes; the trace lists only algorithms within it.
    task_limit: the same for a convolution's inputs, result and workspace together; by default there is none.
    framework: whose memory behaviour, a value of `simgpu.workloads.lowering.framework.Framework`.
    Raises `InputError` for unknown names, and if the GPU's description lacks values that the time model needs.

    >>> from simgpu.hardware.nodes import load_node
    >>> trace = build_trace("vgg16", batch=128, gpu=load_node("v100").gpu)
    >>> trace.block_by_id["conv1_1"].bytes / 2**20, trace.info.origin.value
    (1568.0, 'modelled')
    """
    network = build(name, input, **variant)
    return trace_of(
        network,
        batch=batch,
        gpu=gpu,
        optimizer=optimizer,
        workspace_limit=workspace_limit,
        task_limit=task_limit,
        framework=framework,
    )


def trace_name(name: str, input: str | None, batch: int, gpu: str) -> str:
    """The name of a zoo network's trace. gpu: name of the node whose GPU it is modelled for.

    >>> trace_name("vgg16", "imagenet", 128, "v100"), trace_name("vgg16", "cifar10", 128, "v100")
    ('vgg16-b128-v100', 'vgg16-cifar10-b128-v100')
    """
    other_input = [input] if input not in (None, NETWORKS[name].inputs[0]) else []
    return "-".join([name, *filter(None, other_input), f"b{batch}", gpu])


def trace_of(
    network: Network,
    *,
    batch: int,
    gpu: GpuSpec,
    optimizer: str = "sgd",
    workspace_limit: int = WORKSPACE_LIMIT,
    task_limit: int | None = None,
    framework: str = "pytorch",
) -> Trace:
    """One training iteration of any network; see `build_trace`."""
    problems = []
    if batch < 1:
        problems.append(InputError.single("", "batch", f"{batch} is not a number of samples", "give at least 1"))
    for place, value, known in (("optimizer", optimizer, Optimizer), ("framework", framework, Framework)):
        if value not in list(known):
            remedy = did_you_mean(value, list(known))
            problems.append(InputError.single("", place, f"unknown value {value!r}", remedy))
    if workspace_limit < 0:
        problem = f"{workspace_limit} is not a number of bytes"
        problems.append(InputError.single("", "workspace_limit", problem, "give at least 0"))
    if task_limit is not None and task_limit < 0:
        problem = f"{task_limit} is not a number of bytes"
        problems.append(InputError.single("", "task_limit", problem, "give at least 0"))
    if batch > _MOST_SAMPLES:
        problems.append(_too_many(batch))
    if problems:
        raise InputError(problem for error in problems for problem in error.problems)
    info = TraceInfo(
        model=network.name,
        batch=batch,
        device=gpu.name,
        dtype="float32",
        origin=Origin.MODELLED,
        tool=f"simgpu zoo {__version__}",
        notes=" ".join(
            (_notes(network, optimizer, workspace_limit, task_limit, Framework(framework)), *model_notes(gpu))
        ),
        workspace_limit=None if workspace_limit == WORKSPACE_LIMIT else workspace_limit,
        task_limit=task_limit,
        output=OutputLife.HELD,
        compute="float32",
    )
    prices = time_model(gpu, workspace_limit=workspace_limit, task_limit=task_limit)
    trace = lower(
        network,
        batch=batch,
        prices=prices,
        info=info,
        optimizer=Optimizer(optimizer),
        framework=Framework(framework),
    )
    if _largest_number(trace) > LARGEST:
        raise _too_many(batch)
    return trace


def _largest_number(trace: Trace) -> int:
    of_kernels = (max(kernel.duration_ns, kernel.flops or 0, kernel.dram_bytes or 0) for kernel in trace.kernels)
    return max(*of_kernels, *(block.bytes for block in trace.blocks))


def _too_many(batch: int) -> InputError:
    """One error instead of one for each number of the trace that overflows."""
    problem = f"{batch} samples need more bytes, operations or time than a trace can hold"
    return InputError.single("", "batch", problem, "give a smaller batch")


_HABITS = {
    Framework.PYTORCH: "PyTorch has them",
    Framework.PYTORCH_1_5: "PyTorch 1.5 has them for ReLUs that are not in place",
    Framework.CUDNN: "frameworks that call cuDNN for all layers have them",
    Framework.JOINED: "frameworks that call cuDNN for all layers can have them, with concatenations in place",
    Framework.FUSED: "a framework has them that fuses normalization, ReLU and sum in memory with the layer before",
}


def _notes(network: Network, optimizer: str, workspace_limit: int, task_limit: int | None, framework: Framework) -> str:
    together = "" if task_limit is None else f" ({format_bytes(task_limit)} with inputs and result)"
    return (
        f"Network after {network.provenance}. Kernels, blocks and lifetimes as {_HABITS[framework]}, "
        f"updated by {UPDATES[Optimizer(optimizer)]}; "
        "durations by simgpu's time model. Convolutions run by the fastest algorithm whose workspace is at most "
        f"{format_bytes(workspace_limit)}{together}; the others within that limit are listed too. A framework's own "
        "choice may differ: PyTorch asks cuDNN's heuristics or tries algorithms in the memory that is free, Caffe "
        "allows 8 MiB, TensorFlow 4 GiB."
    )
