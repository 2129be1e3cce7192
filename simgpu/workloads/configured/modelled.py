"""`decoder_iteration` models one training iteration of a decoder-only transformer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from simgpu.errors import InputError, Problem
from simgpu.hardware.spec import GpuSpec, NodeSpec
from simgpu.trace.model import Block, BlockKind, Origin, OutputLife, Trace, TraceInfo
from simgpu.version import __version__
from simgpu.workloads.compiled.forms import CompileForm
from simgpu.workloads.compiled.rewriting import compile_session
from simgpu.workloads.configured.config import OF_JOBS
from simgpu.workloads.configured.decoder import Decoder
from simgpu.workloads.configured.experts import ROUTING_NOTE
from simgpu.workloads.configured.gpt2 import Gpt2Model
from simgpu.workloads.configured.iteration import check_targets, train
from simgpu.workloads.configured.llama import LlamaModel
from simgpu.workloads.configured.llama4 import ALL_TOKENS_NOTE
from simgpu.workloads.configured.losses import LOSSES, LossModel
from simgpu.workloads.configured.neox import NeoxModel
from simgpu.workloads.configured.options import (
    CHUNKS,
    IN_CHUNKS,
    OF_PACKAGE,
    AttentionForm,
    Float8Form,
    FourBitForm,
    LossForm,
    TrainingOptions,
    size_problems,
)
from simgpu.workloads.configured.parts import Build
from simgpu.workloads.configured.tensor_parallel import part_of, problems_of_parts
from simgpu.workloads.eager.attention import fused_kernel
from simgpu.workloads.eager.collectives import PeerGroup, local_gradients
from simgpu.workloads.eager.saved import saved_tensors
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.traced import trace_of_iteration
from simgpu.workloads.timemodel.attention import FlashVersion
from simgpu.workloads.timemodel.formats import model_notes
from simgpu.workloads.timemodel.model import Tf32, time_model

_DEFAULT = TrainingOptions()
_MODELS: Mapping[str, Callable[[Build], LossModel]] = MappingProxyType(
    {"gpt2": Gpt2Model, "gpt_neox": NeoxModel, "phi": NeoxModel}
)


#: What a trace's notes say of GPUs that share the model.
_EXCHANGES = (
    " Operators and collectives of one GPU as PyTorch 2.13's DTensor runs them with torchtitan's plan; collectives run "
    "on the stream of compute, and take what NCCL's cost model gives for the node's links."
)


#: What a trace's notes say of experts whose weights are stored in MXFP4.
_DEQUANTIZED = " Experts' weights in MXFP4 are converted to full ones, as transformers needs to train them."


class SavedBlock(NamedTuple):
    """A block that autograd keeps for backward, and the layer that saved it first."""

    block: Block
    layer: str


@dataclass(frozen=True, slots=True)
class ModelledIteration:
    """One modelled training iteration.

    trace: its saved tensors state what autograd keeps for backward.
    parameters: number of trained parameters; a table that two layers share counts once. With tensor parallelism, those
        of one GPU.
    of_all: number of trained parameters of all GPUs together, where each counts once; None without tensor parallelism.
    micro_batches: how often forward and backward run.
    """

    trace: Trace
    parameters: int
    micro_batches: int = 1
    of_all: int | None = None

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
    decoder: Decoder,
    *,
    batch: int,
    length: int,
    gpu: GpuSpec,
    options: TrainingOptions = _DEFAULT,
    node: NodeSpec | None = None,
) -> ModelledIteration:
    """One training iteration of a decoder, with the kernels that PyTorch runs for the modules of transformers 4.51.

    batch: samples, of all micro-batches together. length: tokens in each.
    node: where the GPUs are that share the model with tensor parallelism; None without it.
    The model is called without a cache of keys and values (``use_cache=False``) and computes the loss itself. The loop
    holds the loss to the end of the iteration, and with `hold_output` the logits.
    Raises `InputError` for invalid values, for options that the GPU or this model of PyTorch does not support, and if
    the GPU's description lacks values that the time model needs.

    >>> from simgpu.hardware.nodes import load_node
    >>> from simgpu.workloads.configured.config import decoder_of
    >>> gpt2 = decoder_of({"model_type": "gpt2"})
    >>> result = decoder_iteration(gpt2, batch=1, length=1024, gpu=load_node("h100").gpu)
    >>> result.parameters, result.trace.info.origin.value
    (124439808, 'modelled')
    """
    products = options.products
    of_package = options.attention in OF_PACKAGE
    fused = fused_kernel(
        gpu.architecture,
        products,
        decoder.head_width,
        masked=decoder.needs_mask(length) and not of_package,
        values=None if of_package else decoder.value_width,  # for the package, they are padded
        dropout=decoder.attention_dropout,
        cudnn=options.cudnn_attention and not of_package,
    )
    problems = _problems(decoder, batch, length, gpu, options, fused)
    problems += problems_of_parts(decoder, length, options, node)
    if problems:
        raise InputError(problems)
    operator = None if options.attention == AttentionForm.EAGER else fused
    group = None if node is None or options.tensor_parallel == 1 else PeerGroup(options.tensor_parallel, node)
    session = _session(decoder, batch=batch, length=length, fused=operator, options=options, group=group)
    notes, sizes = _notes(decoder, length, options), f"{batch} samples of {length} tokens"
    result = finished(session, TraceOf(decoder.name, batch, notes, sizes), gpu, options)
    return result if group is None else replace(result, of_all=group.values_of_all(session.weights))


@dataclass(frozen=True, slots=True)
class TraceOf:
    """What describes a trace. sizes: of its batch, for messages."""

    model: str
    batch: int
    notes: str
    sizes: str


def finished(
    session: Session, of: TraceOf, gpu: GpuSpec, options: TrainingOptions, flash: FlashVersion | None = None
) -> ModelledIteration:
    """The result of an iteration that is on the tape. Raises `InputError` if no trace can hold it, and for TF32 on a
    GPU without it.

    flash: the kernels of fused attention, by default those of the options.
    """
    tf32 = Tf32.ALL if options.tf32 else Tf32.CONVOLUTIONS
    prices = time_model(gpu, tf32=tf32, flash=flash or options.flash(gpu))
    if options.tf32 and not (gpu.tensor_rate is not None and prices.architecture.tf32):
        what = f"{gpu.name} has no matrix units for TF32, which came with Ampere, or their rate is not stated"
        remedy = "give a GPU such as a100-80gb, rtx4090 or h100, or leave it out"
        raise InputError.single("", "tf32", what, remedy)
    products = options.products
    info = TraceInfo(
        model=of.model,
        batch=of.batch,
        device=gpu.name,
        dtype=options.dtype,
        origin=Origin.MODELLED,
        tool=f"simgpu zoo {__version__}",
        notes=" ".join((of.notes, *model_notes(gpu, [products]))),
        output=OutputLife.HELD if options.hold_output else OutputLife.RELEASED,
        compute=products if options.autocast is None else f"{products} (autocast)",
    )
    if options.compile is None:
        trace = trace_of_iteration(session.tape, saved_tensors(session), prices, info)
    else:
        trace = trace_of_iteration(*compile_session(session, CompileForm(options.compile)), prices, info)
    if trace is None:
        what = f"{of.sizes} need more bytes or operations than a trace can hold"
        raise InputError.single("", "sizes", what, "give a smaller batch or smaller samples")
    return ModelledIteration(trace, sum(weight.count for weight in session.weights), options.micro_batches)


def _session(
    decoder: Decoder, *, batch: int, length: int, fused: str | None, options: TrainingOptions, group: PeerGroup | None
) -> Session:
    """fused: the operator for attention; None for eager attention. group: GPUs that share the model; None for one."""
    session = Session(launches=None if options.compile is None else [])
    lora = options.adapters(decoder.family)
    float8 = None if options.float8 is None else Float8Form(options.float8)
    four_bit = None if options.four_bit is None else FourBitForm(options.four_bit)
    build = Build(
        session=session,
        decoder=decoder if group is None else part_of(decoder, group.count),
        dtype=options.dtype,
        fused=fused,
        of_package=options.attention in OF_PACKAGE,
        lora=lora,
        float8=float8,
        four_bit=four_bit,
        made_in=options.products,
        group=group,
    )
    model = _MODELS.get(decoder.family, LlamaModel)(build)
    check_targets(lora, build.linear)
    if float8 is not None and not build.in_float8:
        what = f"{decoder.name} has no linear layer with sides that are multiples of 16"
        raise InputError.single("", "float8", what, "leave it out")
    session.tape.layer = None
    shape = batch // options.micro_batches, length
    tokens = session.constant("input_ids", shape, "int64", BlockKind.INPUT)
    labels = session.constant("labels", shape, "int64", BlockKind.LABEL)

    def forward() -> tuple[Tensor, ...]:
        with session.autocasting(options.autocast):
            return tuple(LOSSES[LossForm(options.loss)](session, model, tokens, labels, options))

    train(session, options, forward, None if group is None else partial(local_gradients, group))
    return session


def _problems(
    decoder: Decoder, batch: int, length: int, gpu: GpuSpec, options: TrainingOptions, fused: str | None
) -> list[Problem]:
    problems = [*options.problems(decoder.family, batch), *options.problems_of_loss(decoder)]
    problems += options.problems_of_compiled(decoder, gpu)
    problems += options.problems_of_family(decoder, fused)
    if decoder.family in OF_JOBS:
        what = f"is missing, and {decoder.family} is modelled in a job of Megatron-LM only"
        problems.append(Problem("", "megatron", what, "give it, as ep8,dp8"))
    problems += size_problems(batch=batch, length=length)
    if decoder.rotary_width == 0 and length > decoder.positions:
        what = f"{length} tokens are more than the {decoder.positions} positions of {decoder.name}"
        problems.append(Problem("", "length", what, f"give at most {decoder.positions}"))
    tokens = batch * length // max(1, options.micro_batches)
    problems += options.problems_of_float8(decoder, tokens, gpu)
    sparse = None if decoder.family == "llama4_text" else decoder.experts
    if sparse is not None and 0 in sparse.rows(tokens):
        what = f"{tokens} tokens are too few for the {sparse.count} experts"
        problems.append(Problem("", "length", what, "give a larger batch or length, or fewer micro-batches"))
    if decoder.chunk is not None and length > decoder.chunk and options.attention not in OF_PACKAGE:
        what = f"{length} tokens are more than a chunk of {decoder.chunk}, and attention of several is not modelled"
        problems.append(Problem("", "length", what, f"give at most {decoder.chunk}"))
    valid = batch * (length - 1) // max(1, options.micro_batches)
    if options.loss in IN_CHUNKS and valid < CHUNKS:
        what = f"{valid} tokens with a next one are too few for {CHUNKS} chunks of the loss"
        problems.append(Problem("", "length", what, "give a larger batch or length, or the loss eager"))
    if not problems and options.attention != AttentionForm.EAGER:
        problems += options.problems_of_fused(fused, gpu, decoder.head_width)
    return problems


def _notes(decoder: Decoder, length: int, options: TrainingOptions) -> str:
    return (
        f"{decoder.family} from its configuration, {length} tokens a sample, {options.described(decoder.family)}. "
        f"Kernels and saved tensors as PyTorch runs the modules of transformers {_version(decoder)} "
        "without a cache of keys and values; blocks are freed after their last use, while Python's variables hold "
        "some of them longer in forward; durations by simgpu's time model. Memory that CUDA operators allocate for "
        "themselves (cuBLAS workspaces, attention's float32 sums in backward) is not included."
        f"{_EXCHANGES if options.tensor_parallel > 1 else ''}"
        f"{_routing(decoder)}"
        f"{_DEQUANTIZED if decoder.dequantized else ''}"
        f"{f' Not modelled: {decoder.without}.' if decoder.without else ''}"
    )


def _version(decoder: Decoder) -> str:
    """The version of transformers whose modules run, and what they are given."""
    return "4.55, given a mask of padding that has none," if decoder.is_later else "4.51"


def _routing(decoder: Decoder) -> str:
    if decoder.experts is None:
        return ""
    return ALL_TOKENS_NOTE if decoder.family == "llama4_text" else ROUTING_NOTE
