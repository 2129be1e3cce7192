"""``simgpu fit``: whether a model fits a GPU, with which options of its training, and what each costs."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import click

from simgpu.cli.choice import size_option
from simgpu.cli.group import OUT_OF_MEMORY, wrapped
from simgpu.cli.screen import Screen, facts, progress, quiet_option, table
from simgpu.cli.settings import arguments_as_options, parse_settings
from simgpu.cli.suggestions import models, nodes
from simgpu.cli.sweep import cores
from simgpu.cli.training_options import (
    attention_option,
    autocast_option,
    compile_option,
    cudnn_attention_option,
    dtype_option,
    float8_option,
    four_bit_option,
    hold_output_option,
    lora_dropout_option,
    lora_dtype_option,
    lora_option,
    lora_targets_option,
    sample_size_option,
    target_length_option,
    tf32_option,
)
from simgpu.errors import InputError, Problem
from simgpu.experiments.fit.entry import FitSettings, fit
from simgpu.experiments.fit.gpu_table import GpuTable, fit_gpus
from simgpu.experiments.fit.result import Fit
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import NodeSpec
from simgpu.io.atomic import atomic_file
from simgpu.version import __version__
from simgpu.workloads.lowering.optimizer import Optimizer

_TABLE = ".csv"
#: Begins the keys of a node's values, as in scenarios.
_NODE = "node."
#: Columns for names of options at least.
_NARROWEST = 16


@click.command("fit")
@click.argument("model", shell_complete=models)
@click.option(
    "--gpu",
    "names",
    required=True,
    multiple=True,
    metavar="NODE",
    shell_complete=nodes,
    help="A shipped node (simgpu list nodes) or a file. Repeatable: one line a GPU.",
)
@click.option(
    "--batch",
    metavar="N",
    type=int,
    help="Samples of a step; divided into micro-batches if they do not fit at once. Default: with --length the largest "
    "that fits; else 1, or that of the trace.",
)
@click.option("--length", metavar="N", type=int, help="Tokens of each sample. Default: the largest that fits.")
@target_length_option
@sample_size_option
@size_option("--budget", "--memory", help="Memory for PyTorch's allocator, e.g. 20GB. Default: all of the GPU's.")
@click.option(
    "--optimizer",
    type=click.Choice([each.value for each in Optimizer]),
    help="Default: adamw; zoo: sgd. bitsandbytes' paged_adamw_8bit is adamw-8bit where all fits; its paging is not "
    "modelled.",
)
@dtype_option
@autocast_option
@attention_option
@cudnn_attention_option
@hold_output_option
@tf32_option
@compile_option
@float8_option
@lora_option
@lora_targets_option
@lora_dtype_option
@lora_dropout_option
@four_bit_option
@click.option("--gpus", metavar="N", type=int, help="GPUs of the node that do the same at once. Default: all.")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help='Change a value of each node, e.g. node.host.launch="16 us" (configs/README.md). Repeatable.',
)
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of processes. Default: one per core where a size is searched, else 1.",
)
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the Pareto front (.png, .svg, .pdf) or the table (.csv). Repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the answer and the table.")
@quiet_option
def fit_(
    model: str,
    names: tuple[str, ...],
    changes: tuple[str, ...],
    jobs: int | None,
    outputs: tuple[Path, ...],
    as_json: bool,
    quiet: bool,
    **settings: Unpack[FitSettings],
) -> None:
    """Ask whether MODEL fits a GPU, at which batch and length, with which options of its training, and at what cost.

    MODEL is the Hugging Face config.json of a transformer or a U-Net, or its folder; a network of the zoo; or a
    trace. The answer comes first, then a table of all options that were tried, each simulated with PyTorch's caching
    allocator. Of several GPUs, the table has the best option on each.

    Exit code 3: no option that trains the same fits.

    \b
    simgpu fit ./Llama-3.2-1B --gpu rtx4090 --batch 1 --length 8192
    simgpu fit ./Llama-3.2-1B --gpu rtx4090 --batch 32 --length 4096 \\
        -o front.png -o table.csv
    simgpu fit ./Llama-3.2-1B/config.json --gpu l40s       # the largest length
    simgpu fit ./Llama-3.2-1B --gpu l40s --length 4096     # the largest batch
    simgpu fit ./Llama-3.2-1B --gpu l40s --gpu h100 --batch 8 --length 4096
    simgpu fit ./Llama-3.1-8B --gpu rtx4090 --length 2048 --lora 16
    simgpu fit ./Llama-3.1-8B --gpu gb200 --float8 tensorwise-compiled
    simgpu fit ./Llama-3.2-1B --gpu l40s --length 4096 --compile layers
    simgpu fit resnet50 --gpu rtx3060 --batch 256
    simgpu fit ./Llama-3.2-1B --gpu h100-x8 --batch 4 --length 8192
    simgpu fit ./Llama-3.2-1B --gpu h100 --batch 1 --length 512 \\
        --set node.host.launch="16 us"
    """
    _check(outputs, several=len(names) > 1)
    jobs = jobs or (cores() if settings.get("batch") is None or settings.get("length") is None else 1)
    gpus: Sequence[str | NodeSpec] = names if not changes else [load_node(name, _overrides(changes)) for name in names]
    with progress(quiet) as say, arguments_as_options(settings):
        result: Fit | GpuTable
        if len(names) > 1:
            result = fit_gpus(model, gpus, jobs=jobs, progress=say, **settings)
        else:
            result = fit(model, gpus[0], jobs=jobs, progress=say, **settings)
        for path in outputs:
            say(f"writing {path}")
            _write(result, path)
    if as_json:
        click.echo(json.dumps({"simgpu": __version__, **result.to_dict()}, indent=2, allow_nan=False))
    else:
        _show(result, outputs)
    if result.best is None:
        sys.exit(OUT_OF_MEMORY)


def _overrides(changes: tuple[str, ...]) -> dict[str, object]:
    """Values of a node by their key. Raises `InputError` for keys of other things."""
    values = parse_settings(changes, of="--set", example=f'--set {_NODE}host.launch="16 us"')
    others = [key for key in values if not key.startswith(_NODE)]
    if others:
        what, remedy = "is no value of a node", f"write {_NODE} and a key of the node's file"
        raise InputError(Problem("--set", key, what, remedy) for key in others)
    return {key.removeprefix(_NODE): value for key, value in values.items()}


def _check(outputs: tuple[Path, ...], *, several: bool) -> None:
    """Raises `InputError` before long work for files of another kind, and for those that cannot be written."""
    for path in outputs:
        if not path.absolute().parent.is_dir():
            raise InputError.single(path, "", f"-o: there is no folder {path.parent}", "create it")
        if path.suffix.lower() != _TABLE:
            if several:
                raise InputError.single(path, "", "-o: the picture is of one GPU", "give a .csv, or one --gpu")
            from simgpu.analysis.plots import figure_format  # loads matplotlib

            try:
                figure_format(path)
            except InputError:
                what = f"-o: {path.suffix.lstrip('.')!r} is not a format of figures or tables"
                remedy = "end the name in .csv, .png, .svg or .pdf; --json prints JSON"
                raise InputError.single(path, "", what, remedy) from None


def _write(result: Fit | GpuTable, path: Path) -> None:
    """Writes the table or the Pareto front."""
    if path.suffix.lower() == _TABLE or isinstance(result, GpuTable):
        text = result.frame().to_csv()
        with atomic_file(path) as part:
            part.write_text(text, encoding="utf-8")
        return
    from simgpu.analysis.plots import save_figure

    save_figure(result.plot(), path)


def _show(result: Fit | GpuTable, outputs: tuple[Path, ...]) -> None:
    screen = Screen()
    click.echo(wrapped(result.answer, before=0))
    screen.print()
    if isinstance(result, Fit):
        screen.print(facts(result.facts()))
        screen.print()
    last = len(result.headings) - 1
    # Long names of options wrap, not the verdict after them; of several GPUs the option is last.
    numbers = range(last) if isinstance(result, GpuTable) else range(1, last + 1)
    rows = result.table()
    if isinstance(result, Fit):
        rows = _with_hanging_names((result.headings, *rows), screen.width)[1:]
    screen.print(table(result.headings, rows, left=(0, last), unbroken=numbers))
    screen.print()
    for note in result.notes():
        click.echo(wrapped(note, before=0))
    for path in outputs:
        click.echo(f"written to {path}")


def _with_hanging_names(rows: Sequence[tuple[str, ...]], width: int) -> list[tuple[str, ...]]:
    """The rows, with first cells divided into lines so that all columns fit the width; later lines are indented."""
    others = [max(map(len, column)) for column in list(zip(*rows, strict=True))[1:]]
    left = max(width - sum(others) - 2 * len(others), _NARROWEST)
    return [("\n".join(textwrap.wrap(row[0], left, subsequent_indent="  ")), *row[1:]) for row in rows]
