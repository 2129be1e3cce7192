"""`decoder_iteration` models one training iteration of a decoder-only transformer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from simgpu.errors import InputError, Problem
from simgpu.hardware.spec import GpuSpec
from simgpu.trace.model import Block, BlockKind, Origin, OutputLife, Trace, TraceInfo
from simgpu.version import __version__
from simgpu.workloads.decoders.decoder import Decoder
from simgpu.workloads.decoders.experts import ROUTING_NOTE
from simgpu.workloads.decoders.iteration import iteration
from simgpu.workloads.decoders.options import CHUNKS, AttentionForm, LossForm, TrainingOptions
from simgpu.workloads.eager.attention import fused_kernel
from simgpu.workloads.eager.traced import trace_of_session
from simgpu.workloads.timemodel.formats import model_notes

#: Larger batches and lengths are typing errors and may overflow the time model.
_MOST = 2**40
_DEFAULT = TrainingOptions()


class SavedBlock(NamedTuple):
    """A block that autograd keeps for backward, and the layer that saved it first."""

    block: Block
    layer: str


@dataclass(frozen=True, slots=True)
class DecoderIteration:
    """One modelled training iteration.

    trace: its saved tensors state what autograd keeps for backward.
    parameters: number of trained parameters; a table that two layers share counts once.
    micro_batches: how often forward and backward run.
    """

    trace: Trace
    parameters: int
    micro_batches: int = 1

    @property
    def saved(self) -> list[SavedBlock]:
        """The blocks other than weights that autograd keeps for backward, in the order in which forward saves them.

        Those of the first micro-batch: each next one saves as many once those before are freed.
        """
        blocks, rows = self.trace.block_by_id, self.trace.saved[: len(self.trace.saved) // self.micro_batches]
        first = {row.block: row.layer or "" for row in reversed(rows)}
        kept = (SavedBlock(blocks[name], first[name]) for name in dict.fromkeys(row.block for row in rows))
        return [each for each in kept if each.block.kind is not BlockKind.WEIGHT]

    @property
    def saved_bytes(self) -> int:
        """Bytes that autograd keeps for backward of a micro-batch, without weights."""
        return sum(each.block.bytes for each in self.saved)


def decoder_iteration(
    decoder: Decoder, *, batch: int, length: int, gpu: GpuSpec, options: TrainingOptions = _DEFAULT
) -> DecoderIteration:
    """One training iteration of a decoder, with the kernels that PyTorch runs for the modules of transformers 4.51.

    batch: samples, of all micro-batches together. length: tokens in each.
    The model is called without a cache of keys and values (``use_cache=False``) and computes the loss itself. The loop
    holds the logits and the loss to the end of the iteration.
    Raises `InputError` for invalid values, for options that the GPU or this model of PyTorch does not support, and if
    the GPU's description lacks values that the time model needs.

    >>> from simgpu.hardware.nodes import load_node
    >>> from simgpu.workloads.decoders.config import decoder_of
    >>> gpt2 = decoder_of({"model_type": "gpt2"})
    >>> result = decoder_iteration(gpt2, batch=1, length=1024, gpu=load_node("h100").gpu)
    >>> result.parameters, result.trace.info.origin.value
    (124439808, 'modelled')
    """
    products = options.products
    fused = fused_kernel(gpu.architecture, products, decoder.head_width, masked=decoder.needs_mask(length))
    problems = _problems(decoder, batch, length, gpu, options, fused)
    if problems:
        raise InputError(problems)
    info = TraceInfo(
        model=decoder.name,
        batch=batch,
        device=gpu.name,
        dtype=options.dtype,
        origin=Origin.MODELLED,
        tool=f"simgpu zoo {__version__}",
        notes=" ".join((_notes(decoder, length, options), *model_notes(gpu, [products]))),
        output=OutputLife.HELD,
        compute=products if options.autocast is None else f"{products} (autocast)",
    )
    operator = fused if options.attention == AttentionForm.SDPA else None
    session = iteration(decoder, batch=batch, length=length, fused=operator, options=options)
    trace = trace_of_session(session, gpu, info)
    if trace is None:
        what = f"{batch} samples of {length} tokens need more bytes or operations than a trace can hold"
        raise InputError.single("", "batch and length", what, "give a smaller batch or length")
    return DecoderIteration(trace, sum(weight.count for weight in session.weights), options.micro_batches)


def _problems(
    decoder: Decoder, batch: int, length: int, gpu: GpuSpec, options: TrainingOptions, fused: str | None
) -> list[Problem]:
    problems = options.problems(decoder, batch)
    for place, value in (("batch", batch), ("length", length)):
        if not 1 <= value <= _MOST:
            problems.append(Problem("", place, f"{value} is not a number from 1 to {_MOST}", "give at least 1"))
    if decoder.rotary_width == 0 and length > decoder.positions:
        what = f"{length} tokens are more than the {decoder.positions} positions of {decoder.name}"
        problems.append(Problem("", "length", what, f"give at most {decoder.positions}"))
    tokens = batch * length // max(1, options.micro_batches)
    if decoder.experts is not None and 0 in decoder.experts.rows(tokens):
        what = f"{tokens} tokens are too few for the {decoder.experts.count} experts"
        problems.append(Problem("", "length", what, "give a larger batch or length, or fewer micro-batches"))
    valid = batch * (length - 1) // max(1, options.micro_batches)
    if options.loss == LossForm.CHUNKED and valid < CHUNKS:
        what = f"{valid} tokens with a next one are too few for {CHUNKS} chunks of the loss"
        problems.append(Problem("", "length", what, "give a larger batch or length, or the loss eager"))
    if not problems and options.attention == AttentionForm.SDPA and fused is None:
        what = f"{gpu.name} has no fused attention for {options.products} and heads of {decoder.head_width} values"
        problems.append(Problem("", "attention", what, "give eager, or another number format or GPU"))
    return problems


def _notes(decoder: Decoder, length: int, options: TrainingOptions) -> str:
    return (
        f"{decoder.family} from its configuration, {length} tokens a sample, {options.described()}. Kernels and saved "
        "tensors as PyTorch runs the modules of transformers "
        "4.51 without a cache of keys and values; blocks are freed after their last use, while Python's variables hold "
        "some of them longer in forward; durations by simgpu's time model. Memory that CUDA operators allocate for "
        "themselves (cuBLAS workspaces, attention's float32 sums in backward) is not included."
        f"{ROUTING_NOTE if decoder.experts is not None else ''}"
    )
