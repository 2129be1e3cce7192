"""``simgpu record``: run a training iteration of a PyTorch model and write its trace."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

import click

from simgpu.cli.group import wrapped
from simgpu.cli.model_options import (
    configuration_options,
    input_option,
    micro_batches_option,
    model_of,
    optimizer_of,
    optimizer_option,
)
from simgpu.cli.record_memory import predict
from simgpu.cli.screen import WIDTH, Screen, facts, progress, quiet_option
from simgpu.cli.suggestions import codecs as offer_codecs
from simgpu.cli.suggestions import nodes, suggest
from simgpu.cli.trace_folder import folder_options, launch_facts, refuse_another, refuse_inside, show_written
from simgpu.compression.codecs.measure import BY_ENTRY, entries_in, sizes_in
from simgpu.compression.codecs.registry import codec_names
from simgpu.errors import InputError, Problem
from simgpu.hardware.nodes import load_node
from simgpu.recorder import BUILT_IN_MODELS, BUILT_IN_OPTIMIZERS
from simgpu.recorder import record as record_model
from simgpu.recorder.inputs import named_inputs
from simgpu.recorder.requests import DEFAULT_ITERATIONS, ZERO_GRAD
from simgpu.trace.folder import write_trace

_DEVICES = suggest(lambda: ("cpu", "cuda"))
_MOST = 2**31 - 1  # larger values are mistakes, and may overflow in PyTorch
_POSITIVE = click.IntRange(min=1, max=_MOST)
_NON_NEGATIVE = click.IntRange(min=0, max=_MOST)


def _listed(title: str, described: Mapping[str, str]) -> str:
    width = max(map(len, described))
    lines = [f"{title}:"]
    for name, what in described.items():
        row, indent = f"  {name:<{width}}  {what}", " " * (width + 4)
        lines += wrap(row, WIDTH - 2, subsequent_indent=indent, break_on_hyphens=False)
    return "\b\n" + "\n".join(lines)


_MODELS = _listed("Built-in models", BUILT_IN_MODELS)
_OPTIMIZERS = _listed("Built-in optimizers", BUILT_IN_OPTIMIZERS)

_ROUGH = (
    "Warning: the kernel times vary widely between repetitions; record again on an idle machine, "
    "with more --warmup and --repetitions"
)


@click.command(epilog=f"{_MODELS}\n\n{_OPTIMIZERS}")
@click.argument("model", shell_complete=suggest(lambda: BUILT_IN_MODELS))
@folder_options
@click.option("--batch", metavar="N", type=_POSITIVE, required=True, help="Batch size in samples.")
@input_option
@configuration_options
@click.option(
    "--device",
    default="cpu",
    show_default=True,
    metavar="cpu|cuda|cuda:N",
    shell_complete=_DEVICES,
    help="Device to run on.",
)
@click.option(
    "--gpu",
    metavar="NODE",
    shell_complete=nodes,
    help="Do not run the model: estimate the iteration for this node's GPU (v100, my-node.yaml).",
)
@optimizer_option
@click.option(
    "--warmup", metavar="N", type=_POSITIVE, default=2, show_default=True, help="Untimed iterations to run first."
)
@click.option(
    "--repetitions", metavar="N", type=_POSITIVE, default=5, show_default=True, help="Timed iterations to run."
)
@click.option(
    "--epochs",
    metavar="N",
    type=_NON_NEGATIVE,
    default=0,
    show_default=True,
    help="Epochs to train first; record sparsity and compressed sizes after each.",
)
@click.option(
    "--codec",
    "codecs",
    multiple=True,
    metavar="NAME",
    shell_complete=offer_codecs,
    help="Also record compressed sizes. Codecs for feature maps: "
    f"{', '.join(name for name in codec_names() if name != BY_ENTRY)}; for the 128-byte memory-entries of all "
    f"blocks: {BY_ENTRY}. Repeatable.",
)
@click.option(
    "--save-maps",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Save the recorded iteration's feature maps as .npy files.",
)
@click.option(
    "--dump-memory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Save snapshots of all live blocks during an iteration as .npy files.",
)
@click.option(
    "--snapshots", metavar="N", type=_POSITIVE, help="With --dump-memory: number of snapshots.  [default: 10]"
)
@click.option(
    "--iterations",
    metavar="N",
    type=_POSITIVE,
    help=f"With --gpu: iterations of the loop whose memory is predicted.  [default: {DEFAULT_ITERATIONS}]",
)
@click.option(
    "--zero-grad",
    type=click.Choice(ZERO_GRAD),
    help="With --gpu: where the loop calls optimizer.zero_grad().  [default: start]",
)
@click.option(
    "--snapshot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --gpu: write the predicted allocations as a PyTorch memory snapshot, for 'simgpu memory'.",
)
@click.option("--hold-output", is_flag=True, help="Keep the model's output in memory until the optimizer's step ends.")
@micro_batches_option
@click.option("--grad-scaler", is_flag=True, help="Scale gradients with torch.amp.GradScaler.")
@click.option("--algorithms", is_flag=True, help="Also measure alternative convolution algorithms.")
@click.option(
    "--seed", metavar="N", type=_NON_NEGATIVE, default=0, show_default=True, help="Random seed of weights and data."
)
@quiet_option
def record(
    model: str,
    output: Path,
    force: bool,
    batch: int,
    inputs: tuple[str, ...],
    device: str,
    gpu: str | None,
    optimizer: str | None,
    warmup: int,
    repetitions: int,
    epochs: int,
    codecs: tuple[str, ...],
    save_maps: Path | None,
    dump_memory: Path | None,
    snapshots: int | None,
    iterations: int | None,
    zero_grad: str | None,
    snapshot: Path | None,
    hold_output: bool,
    micro_batches: int,
    grad_scaler: bool,
    algorithms: bool,
    seed: int,
    quiet: bool,
    **configuration: Any,
) -> None:
    """Run a training iteration of MODEL and write its trace. With --gpu, estimate the trace without running.

    With --gpu, also predict the memory that PyTorch's allocator needs for a training loop on that GPU.

    MODEL is a built-in model, or module.path:factory, which names a function of yours. The function returns a torch
    module (then give --input), (module, inputs), or (module, inputs, labels, loss); a last element with batches to
    train on can follow. The inputs are a tensor, a tuple, or a mapping of keyword arguments. Needs PyTorch: install
    simgpu with the extra 'record'. MODEL can also be the config.json of a Hugging Face model, or its folder: its
    modules are those of transformers or diffusers (extra 'predict'). Without them, see `simgpu zoo build`. Its defaults
    are the same; autocast, LoRA, torch.compile, other losses and several GPUs are options there.

    \b
    simgpu record resnet20 --batch 64 -o traces/resnet20-mine
    simgpu record my_models:unet --batch 8 --device cuda -o traces/unet
    simgpu record my_models:gpt --input idx=Bx256:int64:50257 --batch 4 -o gpt
    simgpu record vgg11 --batch 32 --optimizer torch.optim:NAdam -o vgg11-nadam
    simgpu record my_models:unet --batch 256 --gpu v100 -o unet-v100
    simgpu record ./Qwen3-8B --length 8192 --batch 1 --gpu h100 -o qwen3
    simgpu record digits-cnn --batch 64 --epochs 10 -o digits
    simgpu record digits-cnn --batch 64 --codec zvc --codec rle \\
        --save-maps maps -o digits-sizes
    simgpu record digits-cnn --batch 64 --epochs 4 --codec bpc \\
        --dump-memory dump -o digits-entries
    """
    loop = _loop(gpu, iterations=iterations, zero_grad=zero_grad, snapshot=snapshot)
    created, optimizer = model_of(model, configuration), optimizer_of(model, optimizer)
    refuse_another(output, force)
    refuse_inside({"-o": output, "--save-maps": save_maps, "--dump-memory": dump_memory})
    measure = sizes_in(codecs) if set(codecs) - {BY_ENTRY} else None
    sys.path.insert(0, str(Path.cwd()))  # module.path may be in the current folder
    with progress(quiet) as say:
        say(f"loading {model}")
        trace = record_model(
            created,
            batch=batch,
            inputs=named_inputs(inputs) if inputs else None,
            device=device,
            repetitions=repetitions,
            warmup=warmup,
            seed=seed,
            optimizer=optimizer,
            epochs=epochs,
            algorithms=algorithms,
            gpu=gpu,
            measure=measure,
            save_maps=save_maps,
            measure_entries=entries_in(codecs),
            dump_memory=dump_memory,
            snapshots=snapshots,
            hold_output=hold_output,
            micro_batches=micro_batches,
            grad_scaler=grad_scaler,
            progress=say,
        )
        say(f"writing {output}")
        write_trace(trace, output)
        memory = None
        if gpu is not None:
            memory = predict(
                created,
                load_node(gpu).gpu,
                snapshot,
                say,
                batch=batch,
                inputs=named_inputs(inputs) if inputs else None,
                optimizer=optimizer,
                hold_output=hold_output,
                micro_batches=micro_batches,
                grad_scaler=grad_scaler,
                **loop,
            )
    Screen().print(facts([*trace.facts(), *([] if gpu is None else launch_facts(trace))]))
    if memory is not None:
        Screen().print("")
        Screen().print(facts(memory))
    show_written(output, gpu or "NODE")
    if snapshot is not None:
        click.echo(f"memory snapshot written to {snapshot}; to explain it: simgpu memory {shlex.quote(str(snapshot))}")
    if save_maps is not None:
        click.echo(f"feature maps written to {save_maps}")
    if dump_memory is not None:
        click.echo(f"memory snapshots written to {dump_memory}")
    if trace.is_rough:
        click.echo(f"\n{wrapped(_ROUGH, before=0)}", err=True)


def _loop(gpu: str | None, **given: object) -> dict[str, Any]:
    """The loop's arguments that were given; without a GPU they have no meaning."""
    chosen = {name: value for name, value in given.items() if value is not None}
    if gpu is None and chosen:
        problems = [
            Problem("record", f"--{name.replace('_', '-')}", "predicts the memory of a GPU", "add --gpu NODE")
            for name in chosen
        ]
        raise InputError(problems)
    return {name: value for name, value in chosen.items() if name != "snapshot"}
