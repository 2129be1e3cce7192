"""``simgpu record``: run a PyTorch model for real and write its trace."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap

import click

from simgpu.cli.group import wrapped
from simgpu.cli.screen import WIDTH, Screen, facts, progress, quiet_option
from simgpu.cli.suggestions import codecs as offer_codecs
from simgpu.cli.suggestions import nodes, suggest
from simgpu.cli.trace_folder import folder_options, refuse_another, refuse_inside, show_written
from simgpu.compression.codecs.measure import BY_ENTRY, entries_in, sizes_in
from simgpu.compression.codecs.registry import codec_names
from simgpu.recorder import BUILT_IN_MODELS, BUILT_IN_OPTIMIZERS
from simgpu.recorder import record as record_model
from simgpu.recorder.inputs import named_inputs
from simgpu.trace.folder import write_trace

_DEVICES = suggest(lambda: ("cpu", "cuda"))
_MOST = 2**31 - 1  # more is a slip, and may be more than the numbers of PyTorch hold
_COUNT = click.IntRange(min=1, max=_MOST)
_FROM_NOUGHT = click.IntRange(min=0, max=_MOST)


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
    "Warning: the times of its kernels vary widely between repetitions; record again while nothing else runs, "
    "with more --warmup and --repetitions"
)


@click.command(epilog=f"{_MODELS}\n\n{_OPTIMIZERS}")
@click.argument("model", shell_complete=suggest(lambda: BUILT_IN_MODELS))
@folder_options
@click.option("--batch", type=_COUNT, required=True, help="Samples in the iteration.")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=SHAPE[:TYPE[:BELOW]]",
    help="What your module is given, where your function returns it alone: x=Bx3x224x224, or ids=Bx128:int64:50257 "
    "for integers below 50257; B is the batch. Repeatable.",
)
@click.option(
    "--device",
    default="cpu",
    show_default=True,
    metavar="cpu|cuda|cuda:N",
    shell_complete=_DEVICES,
    help="Where it runs.",
)
@click.option(
    "--gpu",
    metavar="NODE",
    shell_complete=nodes,
    help="Run nothing: model the iteration for a node's GPU (v100, my-node.yaml).",
)
@click.option(
    "--optimizer",
    default="sgd",
    show_default=True,
    metavar="NAME",
    shell_complete=suggest(lambda: BUILT_IN_OPTIMIZERS),
    help="Built in, or module.path:factory.",
)
@click.option("--warmup", type=_COUNT, default=2, show_default=True, help="Iterations run first.")
@click.option("--repetitions", type=_COUNT, default=5, show_default=True, help="Timed iterations.")
@click.option(
    "--epochs", type=_FROM_NOUGHT, default=0, show_default=True, help="Train first; sparsity and sizes at each."
)
@click.option(
    "--codec",
    "codecs",
    multiple=True,
    metavar="NAME",
    shell_complete=offer_codecs,
    help=f"Sizes too: of feature maps in {', '.join(name for name in codec_names() if name != BY_ENTRY)}; "
    f"of the memory-entries of all blocks in {BY_ENTRY}. Repeatable.",
)
@click.option(
    "--save-maps",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Keep the recorded step's feature maps, as .npy.",
)
@click.option(
    "--dump-memory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Keep snapshots of all live blocks along an iteration, as .npy.",
)
@click.option("--snapshots", type=_COUNT, help="How many.  [default: 10]")
@click.option("--hold-output", is_flag=True, help="The loop holds the model's output through backward.")
@click.option("--grad-scaler", is_flag=True, help="The loop scales gradients (torch.amp.GradScaler).")
@click.option("--algorithms", is_flag=True, help="Measure other ways to run convolutions.")
@click.option("--seed", type=_FROM_NOUGHT, default=0, show_default=True, help="Of weights and data.")
@quiet_option
def record(
    model: str,
    output: Path,
    force: bool,
    batch: int,
    inputs: tuple[str, ...],
    device: str,
    gpu: str | None,
    optimizer: str,
    warmup: int,
    repetitions: int,
    epochs: int,
    codecs: tuple[str, ...],
    save_maps: Path | None,
    dump_memory: Path | None,
    snapshots: int | None,
    hold_output: bool,
    grad_scaler: bool,
    algorithms: bool,
    seed: int,
    quiet: bool,
) -> None:
    """Run one training iteration of MODEL for real and write its trace; or with --gpu, model it without running it.

    MODEL is a built-in name, or module.path:factory for a function of yours that returns a torch module (name its
    inputs with --input), or (module, inputs), or (module, inputs, labels, loss), or these and batches to train on.
    Inputs are a tensor, a tuple, or a mapping of keywords. Needs PyTorch (the extra 'record').

    \b
    simgpu record resnet20 --batch 64 -o traces/resnet20-mine
    simgpu record my_models:unet --batch 8 --device cuda -o traces/unet
    simgpu record my_models:gpt --input idx=Bx256:int64:50257 --batch 4 -o gpt
    simgpu record vgg11 --batch 32 --optimizer torch.optim:NAdam -o vgg11-nadam
    simgpu record my_models:unet --batch 256 --gpu v100 -o unet-v100
    simgpu record digits-cnn --batch 64 --epochs 10 -o digits
    simgpu record digits-cnn --batch 64 --codec zvc --codec rle \\
        --save-maps maps -o digits-sizes
    simgpu record digits-cnn --batch 64 --epochs 4 --codec bpc \\
        --dump-memory dump -o digits-entries
    """
    refuse_another(output, force)
    refuse_inside({"-o": output, "--save-maps": save_maps, "--dump-memory": dump_memory})
    measure = sizes_in(codecs) if set(codecs) - {BY_ENTRY} else None
    sys.path.insert(0, str(Path.cwd()))  # module.path:factory may stand in the folder the user is in
    with progress(quiet) as say:
        say(f"loading {model}")
        trace = record_model(
            model,
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
            grad_scaler=grad_scaler,
            progress=say,
        )
        say(f"writing {output}")
        write_trace(trace, output)
    Screen().print(facts(trace.facts()))
    show_written(output, gpu or "NODE")
    if save_maps is not None:
        click.echo(f"feature maps in {save_maps}")
    if dump_memory is not None:
        click.echo(f"snapshots of memory in {dump_memory}")
    if trace.is_rough:
        click.echo(f"\n{wrapped(_ROUGH, before=0)}", err=True)
