"""`diffusion_iteration` models one training iteration of a diffusion transformer (DiT)."""

from __future__ import annotations

from simgpu.errors import InputError, Problem
from simgpu.hardware.spec import GpuSpec
from simgpu.trace.model import BlockKind, Origin, OutputLife, TraceInfo
from simgpu.version import __version__
from simgpu.workloads.decoders.diffusion import DiffusionTransformer
from simgpu.workloads.decoders.dit import DitModel
from simgpu.workloads.decoders.modelled import DecoderIteration
from simgpu.workloads.decoders.options import AttentionForm, TrainingOptions
from simgpu.workloads.decoders.parts import Build
from simgpu.workloads.eager.attention import fused_kernel
from simgpu.workloads.eager.engine import run_backward
from simgpu.workloads.eager.normalization import squared_loss
from simgpu.workloads.eager.pointwise import cast
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.traced import trace_of_session
from simgpu.workloads.eager.views import split
from simgpu.workloads.lowering import optimizer as step
from simgpu.workloads.lowering.optimizer import UPDATES, Optimizer
from simgpu.workloads.lowering.tape import TapeBlock, Value
from simgpu.workloads.timemodel.formats import model_notes

_DEFAULT = TrainingOptions()
#: Larger batches are typing errors and may overflow the time model.
_MOST = 2**40


def diffusion_iteration(
    model: DiffusionTransformer,
    *,
    batch: int,
    gpu: GpuSpec,
    options: TrainingOptions = _DEFAULT,
) -> DecoderIteration:
    """One training iteration of a DiT, with the kernels that PyTorch runs for diffusers' module.

    batch: latent images, of the size in the configuration, each with a timestep and a class. options: of attention,
    sdpa, PyTorch's fused operator; neither autocast, LoRA nor micro-batches.
    The loss is the mean squared error of the predicted noise in float32, as in diffusers' training scripts. A model
    that also predicts variances computes them, but nothing trains them: DiT's term for them (of the variational bound)
    is not modelled. The loop holds prediction and loss to the end of the iteration.
    Raises `InputError` for invalid values, and if the GPU's description lacks values that the time model needs.

    >>> from simgpu.hardware.nodes import load_node
    >>> from simgpu.workloads.decoders.config import model_of
    >>> small = model_of({"_class_name": "DiTTransformer2DModel", "num_layers": 1})
    >>> diffusion_iteration(small, batch=1, gpu=load_node("h100").gpu).parameters
    29377168
    """
    dtype, optimizer = options.dtype, options.optimizer
    fused = fused_kernel(gpu.architecture, dtype, model.decoder.head_width)
    problems = _problems(model, batch, gpu, options, fused)
    if problems:
        raise InputError(problems)
    info = TraceInfo(
        model=model.name,
        batch=batch,
        device=gpu.name,
        dtype=dtype,
        origin=Origin.MODELLED,
        tool=f"simgpu zoo {__version__}",
        notes=" ".join((_notes(model, optimizer), *model_notes(gpu, [dtype]))),
        output=OutputLife.HELD,
        compute=dtype,
    )
    session = _iteration(model, batch, Build(Session(), model.decoder, dtype, fused), Optimizer(optimizer))
    trace = trace_of_session(session, gpu, info)
    if trace is None:
        what = f"{batch} latent images need more bytes or operations than a trace can hold"
        raise InputError.single("", "batch", what, "give a smaller batch")
    return DecoderIteration(trace, sum(weight.count for weight in session.weights))


def _iteration(model: DiffusionTransformer, batch: int, build: Build, optimizer: Optimizer) -> Session:
    session, tape = build.session, build.session.tape
    module = DitModel(build, model)
    tape.layer = None
    shape = (batch, model.channels, model.side, model.side)
    image = session.constant("hidden_states", shape, build.dtype, BlockKind.INPUT)
    timesteps = session.constant("timestep", (batch,), "int64", BlockKind.INPUT)
    classes = session.constant("class_labels", (batch,), "int64", BlockKind.INPUT)
    noise = session.constant("noise", shape, build.dtype, BlockKind.LABEL)
    weights = [Value(weight.block, weight.shape) for weight in session.weights]
    states = step.states(tape, optimizer, weights)
    tape.layer = None
    output = predicted = module(image, timesteps, classes)
    with session.layer("loss"):
        if model.results > model.channels:
            predicted, _ = split(session, output, [model.channels] * 2, dimension=1)
        loss = squared_loss(session, cast(session, predicted, "float32"), cast(session, noise, "float32"))
    gradients: dict[TapeBlock, Tensor] = {}
    run_backward(session, loss, gradients)
    of_weights = {block: Value(grad.block, block.shape) for block, grad in gradients.items()}
    step.update(tape, optimizer, weights, of_weights, states)
    output.block.release = loss.block.release = None
    return session


def _problems(
    model: DiffusionTransformer, batch: int, gpu: GpuSpec, options: TrainingOptions, fused: str | None
) -> list[Problem]:
    problems = [*options.problems(model.decoder, batch), *options.problems_of_plain("DiT")]
    if options.attention == AttentionForm.EAGER:
        problems.append(Problem("", "attention", "eager attention of a DiT is not modelled", "give sdpa"))
    if not 1 <= batch <= _MOST:
        problems.append(Problem("", "batch", f"{batch} is not a number from 1 to {_MOST}", "give at least 1"))
    if not problems and fused is None:
        what = f"{gpu.name} has no fused attention for {options.dtype} and heads of {model.decoder.head_width} values"
        problems.append(Problem("", "attention", what, "give another dtype or GPU"))
    return problems


def _notes(model: DiffusionTransformer, optimizer: str) -> str:
    return (
        f"dit from its configuration, latent images of {model.channels} x {model.side} x {model.side}, sdpa attention, "
        f"updated by {UPDATES[Optimizer(optimizer)]}. Kernels and saved tensors as PyTorch runs diffusers' "
        "DiTTransformer2DModel, where each block has its own embedding of timestep and class; the loss is the mean "
        "squared error of the noise, without a term for variances. The frozen image encoder and the addition of noise "
        "are not included. Blocks are freed after their last use, while Python's variables hold some of them longer "
        "in forward; durations by simgpu's time model. Memory that CUDA operators allocate for themselves (cuBLAS "
        "workspaces, attention's float32 sums in backward) is not included."
    )
