"""Tensor parallelism: what one of several GPUs has of a decoder, and what is not modelled of it.

The plan is torchtitan's for Llama (``apply_tp`` of torchtitan/models/llama3/infra/parallelize.py before 9810191b), on
PyTorch's DTensor: heads and the feed-forward part are split by columns and then by rows, embedding and output layer by
the vocabulary, tokens between these parts by their place in the sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simgpu.errors import Problem
from simgpu.hardware.spec import NodeSpec
from simgpu.workloads.configured.decoder import Decoder
from simgpu.workloads.configured.options import AttentionForm, LossForm, TrainingOptions
from simgpu.workloads.lowering.optimizer import Optimizer

#: Families that are built of the same modules, as ``model_type``.
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
#: bitsandbytes' takes no distributed tensors; SGD's momentum is laid out as gradients are, whole for the embedding.
_OTHER_OPTIMIZERS = (Optimizer.ADAMW_8BIT, Optimizer.SGD)
_LEAVE_OUT = "leave out one of them"


def part_of(decoder: Decoder, count: int) -> Decoder:
    """The decoder with the sizes of each GPU's part. count: of the GPUs, which divides them.

    >>> from simgpu.workloads.configured.config import decoder_of
    >>> part_of(decoder_of({"model_type": "llama"}), 4).heads
    8
    """
    sizes = {name: getattr(decoder, name) // count for name in ("heads", "key_heads", "inner", "vocabulary")}
    return replace(decoder, **sizes)


def problems_of_parts(
    decoder: Decoder, length: int, options: TrainingOptions, node: NodeSpec | None
) -> Iterator[Problem]:
    """What the options' tensor parallelism does not support. node: where the GPUs are; None for a GPU alone."""
    count, place = options.tensor_parallel, "tensor_parallel"
    if count == 1:
        return
    if count < 1:
        yield Problem("", place, f"{count} is not a number of GPUs", "give at least 1")
        return
    if decoder.family not in FAMILIES:
        yield Problem("", place, f"is modelled for {', '.join(FAMILIES)}, not for {decoder.family}", "leave it out")
    sizes = (
        (decoder.heads, "heads"),
        (decoder.key_heads, "heads of keys and values"),
        (decoder.inner, "values of the feed-forward part"),
        (decoder.vocabulary, "words of the vocabulary"),
        (length, "tokens of a sample"),
    )
    uneven = [f"{size} {what}" for size, what in sizes if size % count]
    if uneven:
        what = f"{count} GPUs do not divide {', '.join(uneven)}"
        yield Problem("", place, what, "give a number of GPUs that divides them")
    if node is None or count > node.gpus:
        there = "one GPU is given" if node is None else f"{node.name} has {node.gpus}"
        remedy = "give a node such as h100-x8" if node is None or node.gpus == 1 else f"give at most {node.gpus}"
        yield Problem("", place, f"needs {count} GPUs of a node, and {there}", remedy)
    elif node.peers is None:
        what = f"{node.name} does not state what its GPUs exchange data over"
        yield Problem("", place, what, "give a node that does, such as h100-x8, or set node.peers")
    yield from _problems_of_others(decoder, options)


def _problems_of_others(decoder: Decoder, options: TrainingOptions) -> Iterator[Problem]:
    others = (
        ("loss", f"the {options.loss} loss", options.loss != LossForm.EAGER),
        ("attention", options.attention, options.attention not in (AttentionForm.SDPA, AttentionForm.EAGER)),
        ("optimizer", f"the optimizer {options.optimizer}", options.optimizer in _OTHER_OPTIMIZERS),
        ("master_weights", "float32 copies of the weights", options.master_weights),
        ("float8", "float8", options.float8),
        ("optimizer_in_backward", "updates within backward", options.optimizer_in_backward),
        ("grad_scaler", "scaling of gradients", options.grad_scaler),
        ("lora", "LoRA", options.lora is not None),
        ("four_bit", "weights in four bits", options.four_bit),
        ("compile", "torch.compile", options.compile),
    )
    for place, what, given in others:
        if given:
            yield Problem("", place, f"{what} next to tensor parallelism is not modelled", _LEAVE_OUT)
    if decoder.output_bias or decoder.inner_bias:
        what = (
            f"{decoder.name} has a bias of attention's result or of the feed-forward part, whose split is not modelled"
        )
        yield Problem("", "tensor_parallel", what, "leave it out")
