"""Options of commands that model the training of a Hugging Face ``config.json``; without a value they are None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from simgpu.workloads.compiled.forms import CompileForm
from simgpu.workloads.configured.options import (
    AUTOCASTS,
    DTYPES,
    AttentionForm,
    Float8Form,
    FourBitForm,
    LossForm,
    MasterForm,
)

F = TypeVar("F", bound=Callable[..., Any])

dtype_option = click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    help="Number format of a configuration's weights and, without autocast, activations. Default: bfloat16; "
    "float32 with --autocast.",
)
autocast_option = click.option(
    "--autocast",
    type=click.Choice(AUTOCASTS),
    help="Run forward and loss of a configuration under torch.autocast with this lower precision.",
)
attention_option = click.option(
    "--attention",
    type=click.Choice([each.value for each in AttentionForm]),
    help="Attention of a configuration: PyTorch's fused operator, products and softmax, or the package flash-attn, "
    "as transformers' attn_implementation; version 3 on Hopper. Default: sdpa; eager for T5 and GPT-OSS, which have no "
    "other.",
)
cudnn_attention_option = click.option(
    "--cudnn-attention/--no-cudnn-attention",
    default=None,
    help="Whether PyTorch's fused attention of a configuration may be cuDNN's on Hopper and Blackwell, as from "
    "PyTorch 2.11 on. Default: yes.",
)
hold_output_option = click.option(
    "--hold-output",
    is_flag=True,
    default=None,
    help="Hold what a configuration's model returns, such as logits, until the optimizer's step ends, as a loop with "
    "`outputs = model(**batch)` does. Default: the loss alone, as Transformers' Trainer.",
)
float8_option = click.option(
    "--float8",
    type=click.Choice([each.value for each in Float8Form]),
    help="Run a decoder's linear layers but that of the logits in float8, as torchao's convert_to_float8_training; "
    "tensorwise-compiled: each under torch.compile. Default: none.",
)
tf32_option = click.option(
    "--tf32",
    is_flag=True,
    default=None,
    help="Run float32 products of a configuration in TF32, as torch.set_float32_matmul_precision('high') does.",
)
compile_option = click.option(
    "--compile",
    type=click.Choice([each.value for each in CompileForm]),
    help="Run each layer of a decoder, or the model with its loss, under torch.compile: operators that TorchInductor "
    "fuses have no tensors in between, and backward computes again what PyTorch's partitioner decides. Default: none.",
)
lora_option = click.option(
    "--lora",
    metavar="RANK",
    type=click.IntRange(min=1),
    help="Train only LoRA's adapters of this rank, as peft does.",
)
lora_targets_option = click.option(
    "--lora-targets",
    metavar="NAMES",
    callback=lambda _context, _option, value: value and tuple(value.split(",")),
    help="With --lora: linear layers, joined by commas, or all-linear. Default: q_proj,v_proj; "
    "q,v for T5; those of attention for DiT and U-Nets.",
)
lora_dtype_option = click.option(
    "--lora-dtype",
    type=click.Choice(DTYPES),
    help="With --lora: number format of the adapters, that of the weights as in torchtune, or float32 as in peft. "
    "Default: float32.",
)
lora_dropout_option = click.option(
    "--lora-dropout",
    metavar="RATE",
    type=click.FloatRange(0, 1, max_open=True),
    help="With --lora: rate at which values of each adapter's input are dropped, as peft's lora_dropout. Default: 0.",
)
four_bit_option = click.option(
    "--four-bit",
    type=click.Choice([each.value for each in FourBitForm]),
    help="With --lora: a decoder's frozen linear layers but that of the logits in four bits, as bitsandbytes (QLoRA); "
    "nf4-double: with double quantization. With --autocast all else is float32, as after peft's "
    "prepare_model_for_kbit_training. Next to --compile, graphs keep the matrices in half precision. Default: none.",
)

target_length_option = click.option(
    "--target-length",
    metavar="N",
    type=click.IntRange(min=1),
    help="Tokens of the labels of each sample of T5. Default: as many as --length.",
)
sample_size_option = click.option(
    "--sample-size",
    metavar="N",
    type=click.IntRange(min=1),
    help="Side of a U-Net's latent images, an eighth of the images'. Default: its configuration's.",
)


def training_options(command: F) -> F:
    """Adds all options that apply to a configuration only."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option(
        "--length",
        metavar="N",
        type=click.IntRange(min=1),
        help="Tokens per sample of a configuration; not for DiT. Of a U-Net's text, default: 77.",
    ),
    target_length_option,
    sample_size_option,
    dtype_option,
    autocast_option,
    attention_option,
    cudnn_attention_option,
    hold_output_option,
    tf32_option,
    compile_option,
    float8_option,
    click.option(
        "--loss",
        type=click.Choice([each.value for each in LossForm]),
        help="Loss of a configuration: all logits at once, in 8 chunks as torchtune, which may be compiled, or fused "
        "with the output layer as in Liger-Kernel. Default: eager.",
    ),
    click.option(
        "--optimizer-in-backward",
        is_flag=True,
        default=None,
        help="Update each weight of a configuration in backward, and free its gradient, as torchtune's "
        "optimizer_in_bwd.",
    ),
    click.option(
        "--grad-scaler",
        is_flag=True,
        default=None,
        help="Scale the loss and unscale gradients as torch.amp.GradScaler; with --autocast float16.",
    ),
    click.option(
        "--master-weights",
        type=click.Choice([each.value for each in MasterForm]),
        help="Keep float32 copies of bfloat16 weights; convert their gradients before the update, or add them up in "
        "float32 (main-grad), as Megatron-LM. Default: none.",
    ),
    click.option(
        "--micro-batches",
        metavar="K",
        type=click.IntRange(min=1),
        help="Gradient accumulation of a configuration: K equal parts of the batch before one optimizer step.",
    ),
    lora_option,
    lora_targets_option,
    lora_dtype_option,
    lora_dropout_option,
    four_bit_option,
    click.option(
        "--tensor-parallel",
        metavar="T",
        type=click.IntRange(min=1),
        help="Model one of T GPUs of the node that share each layer of a decoder, and the tokens between layers, as "
        "PyTorch's DTensor does with torchtitan's plan. The node states its links (peers). Default: 1.",
    ),
    click.option(
        "--megatron",
        metavar="LAYOUT",
        help="Model one GPU of a job of Megatron-LM with TransformerEngine's modules: of tp GPUs that share each "
        "layer, cp that share the tokens, pp stages of layers, ep that share the experts of a layer, etp that share "
        "each expert (by default tp), and dp that share the batch, as tp4,pp2,dp2 or ep8,dp8. "
        "--batch is that of one GPU, and the node states its links (peers). Default: transformers' modules on one GPU.",
    ),
    click.option(
        "--stage",
        metavar="N",
        type=click.IntRange(min=0),
        help="Stage of --megatron's pipeline. Default: 0, the first.",
    ),
)
