"""`encoder_decoder_iteration` models one training iteration of an encoder and a decoder (T5)."""

from __future__ import annotations

from simgpu.errors import InputError, Problem
from simgpu.hardware.spec import GpuSpec
from simgpu.trace.model import BlockKind
from simgpu.workloads.configured.encoder_decoder import EncoderDecoder
from simgpu.workloads.configured.iteration import check_targets, train
from simgpu.workloads.configured.modelled import ModelledIteration, TraceOf, finished
from simgpu.workloads.configured.options import AttentionForm, TrainingOptions, size_problems
from simgpu.workloads.configured.parts import Build
from simgpu.workloads.configured.t5 import T5Model
from simgpu.workloads.eager.normalization import token_loss
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor

_DEFAULT = TrainingOptions(attention=AttentionForm.EAGER)


def encoder_decoder_iteration(
    model: EncoderDecoder,
    *,
    batch: int,
    length: int,
    target_length: int | None = None,
    gpu: GpuSpec,
    options: TrainingOptions = _DEFAULT,
) -> ModelledIteration:
    """One training iteration of T5, with the kernels that PyTorch runs for the modules of transformers 4.51.

    batch: samples, of all micro-batches together. length: tokens of each. target_length: tokens of each sample's
    labels, by default as many. options: of number formats, all but float16; of attention, eager, the only form that T5
    has in transformers 4.51.
    The model is called without a cache and computes the loss itself, in the weights' format. The loop holds the loss to
    the end of the iteration, and with `hold_output` all that the model returns (logits and the encoder's result).
    Raises `InputError` for invalid values, and if the GPU's description lacks values that the time model needs.

    >>> from simgpu.hardware.nodes import load_node
    >>> from simgpu.workloads.configured.config import model_of
    >>> small = model_of({"model_type": "t5"})
    >>> encoder_decoder_iteration(small, batch=1, length=64, gpu=load_node("h100").gpu).parameters
    60506624
    """
    lengths = length, length if target_length is None else target_length
    problems = _problems(model, batch, lengths, options)
    if problems:
        raise InputError(problems)
    notes, sizes = _notes(model, lengths, options), f"{batch} samples of {max(lengths)} tokens"
    return finished(_session(model, batch, lengths, options), TraceOf(model.name, batch, notes, sizes), gpu, options)


def _session(model: EncoderDecoder, batch: int, lengths: tuple[int, int], options: TrainingOptions) -> Session:
    session = Session()
    lora = options.adapters(model.decoder.family)
    build = Build(session=session, decoder=model.decoder, dtype=options.dtype, fused=None, lora=lora)
    module = T5Model(build, model)
    check_targets(lora, build.linear)
    session.tape.layer = None
    samples = batch // options.micro_batches
    tokens = session.constant("input_ids", (samples, lengths[0]), "int64", BlockKind.INPUT)
    labels = session.constant("labels", (samples, lengths[1]), "int64", BlockKind.LABEL)

    def forward() -> tuple[Tensor, ...]:
        with session.autocasting(options.autocast):
            logits, encoded, variables = module(tokens, labels)
            with session.layer("loss"):
                loss = token_loss(session, logits, labels)
            session.keep(variables)
            return loss, logits, encoded

    train(session, options, forward)
    return session


def _problems(model: EncoderDecoder, batch: int, lengths: tuple[int, int], options: TrainingOptions) -> list[Problem]:
    problems = options.problems(model.decoder.family, batch) + options.problems_of_plain(model.decoder.family)
    if options.products == "float16":
        what = "T5 in float16, where transformers limits values that overflow, is not modelled"
        problems.append(Problem("", "dtype", what, "give bfloat16 or float32"))
    if options.attention != AttentionForm.EAGER:
        what = f"T5 has no {options.attention} attention in transformers 4.51"
        problems.append(Problem("", "attention", what, "give eager"))
    return [*problems, *size_problems(batch=batch), *size_problems(2, length=lengths[0], target_length=lengths[1])]


def _notes(model: EncoderDecoder, lengths: tuple[int, int], options: TrainingOptions) -> str:
    labels = "as many" if lengths[0] == lengths[1] else lengths[1]
    return (
        f"t5 from its configuration, {lengths[0]} tokens a sample and {labels} labels, "
        f"{options.described(model.decoder.family)}. Kernels and saved tensors as PyTorch runs the modules of "
        "transformers 4.51 without a cache of keys and values; blocks are freed after their last use, while Python's "
        "variables hold some of them longer in forward; durations by simgpu's time model. Memory that CUDA operators "
        "allocate for themselves (cuBLAS workspaces) is not included."
    )
