"""`encoder_decoder_iteration` models one training iteration of an encoder and a decoder (T5)."""

from __future__ import annotations

from simgpu.errors import InputError, Problem
from simgpu.hardware.spec import GpuSpec
from simgpu.trace.model import BlockKind, Origin, OutputLife, TraceInfo
from simgpu.version import __version__
from simgpu.workloads.decoders.encoder_decoder import EncoderDecoder
from simgpu.workloads.decoders.modelled import DecoderIteration
from simgpu.workloads.decoders.options import AttentionForm, TrainingOptions
from simgpu.workloads.decoders.parts import Build
from simgpu.workloads.decoders.t5 import T5Model
from simgpu.workloads.eager.engine import run_backward
from simgpu.workloads.eager.normalization import token_loss
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.traced import trace_of_session
from simgpu.workloads.lowering import optimizer as step
from simgpu.workloads.lowering.optimizer import UPDATES, Optimizer
from simgpu.workloads.lowering.tape import TapeBlock, Value
from simgpu.workloads.timemodel.formats import model_notes

_MOST = 2**40
_DEFAULT = TrainingOptions(attention=AttentionForm.EAGER)


def encoder_decoder_iteration(
    model: EncoderDecoder,
    *,
    batch: int,
    length: int,
    gpu: GpuSpec,
    options: TrainingOptions = _DEFAULT,
) -> DecoderIteration:
    """One training iteration of T5, with the kernels that PyTorch runs for the modules of transformers 4.51.

    batch: samples. length: tokens of each, and of each sample's labels. options: of number formats, bfloat16 and
    float32 without autocast; of attention, eager, the only form that T5 has in transformers 4.51; no micro-batches.
    The model is called without a cache and computes the loss itself, in the weights' format. The loop holds what it
    returns (logits, loss and the encoder's result) to the end of the iteration.
    Raises `InputError` for invalid values, and if the GPU's description lacks values that the time model needs.

    >>> from simgpu.hardware.nodes import load_node
    >>> from simgpu.workloads.decoders.config import model_of
    >>> small = model_of({"model_type": "t5"})
    >>> encoder_decoder_iteration(small, batch=1, length=64, gpu=load_node("h100").gpu).parameters
    60506624
    """
    problems = _problems(model, batch, length, options)
    if problems:
        raise InputError(problems)
    dtype = options.dtype
    info = TraceInfo(
        model=model.name,
        batch=batch,
        device=gpu.name,
        dtype=dtype,
        origin=Origin.MODELLED,
        tool=f"simgpu zoo {__version__}",
        notes=" ".join((_notes(length, options.optimizer), *model_notes(gpu, [dtype]))),
        output=OutputLife.HELD,
        compute=dtype,
    )
    session = _iteration(model, batch, length, dtype, Optimizer(options.optimizer))
    trace = trace_of_session(session, gpu, info)
    if trace is None:
        what = f"{batch} samples of {length} tokens need more bytes or operations than a trace can hold"
        raise InputError.single("", "batch and length", what, "give a smaller batch or length")
    return DecoderIteration(trace, sum(weight.count for weight in session.weights))


def _iteration(model: EncoderDecoder, batch: int, length: int, dtype: str, optimizer: Optimizer) -> Session:
    session = Session()
    tape = session.tape
    module = T5Model(Build(session, model.decoder, dtype, None), model)
    tape.layer = None
    tokens = session.constant("input_ids", (batch, length), "int64", BlockKind.INPUT)
    labels = session.constant("labels", (batch, length), "int64", BlockKind.LABEL)
    weights = [Value(weight.block, weight.shape) for weight in session.weights]
    states = step.states(tape, optimizer, weights)
    tape.layer = None
    logits, encoded = module(tokens, labels)
    with session.layer("loss"):
        loss = token_loss(session, logits, labels)
    gradients: dict[TapeBlock, Tensor] = {}
    run_backward(session, loss, gradients)
    of_weights = {block: Value(grad.block, block.shape) for block, grad in gradients.items()}
    step.update(tape, optimizer, weights, of_weights, states)
    logits.block.release = loss.block.release = encoded.block.release = None
    return session


def _problems(model: EncoderDecoder, batch: int, length: int, options: TrainingOptions) -> list[Problem]:
    problems = options.problems(model.decoder, batch)
    if options.products == "float16":
        what = "T5 in float16, where transformers limits values that overflow, is not modelled"
        problems.append(Problem("", "dtype", what, "give bfloat16 or float32"))
    if options.attention == AttentionForm.SDPA:
        problems.append(Problem("", "attention", "T5 has no sdpa attention in transformers 4.51", "give eager"))
    problems += options.problems_of_plain("T5")
    problems += [
        Problem("", place, f"{value} is not a number from {least} to {_MOST}", f"give at least {least}")
        for place, value, least in (("batch", batch, 1), ("length", length, 2))
        if not least <= value <= _MOST
    ]
    return problems


def _notes(length: int, optimizer: str) -> str:
    return (
        f"t5 from its configuration, {length} tokens a sample and as many labels, eager attention, updated by "
        f"{UPDATES[Optimizer(optimizer)]}. Kernels and saved tensors as PyTorch runs the modules of transformers 4.51 "
        "without a cache of keys and values, all weights in one format; blocks are freed after their last use, while "
        "Python's variables hold some of them longer in forward; durations by simgpu's time model. Memory that CUDA "
        "operators allocate for themselves (cuBLAS workspaces) is not included."
    )
