"""``simgpu trace import``: another tool's recording as a trace folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from simgpu.cli.screen import Screen, facts, progress, quiet_option
from simgpu.cli.trace_folder import folder_options, refuse_another, show_written
from simgpu.errors import InputError
from simgpu.importers import IMPORTERS, ImportOptions, detect, import_trace
from simgpu.trace.folder import write_trace
from simgpu.trace.model import Trace

_FORMATS = "; ".join(f"{importer.name} ({importer.looks_like})" for importer in IMPORTERS)

_NAMED = 20
#: Folders of folders are looked into so far down: recordings of one kind, of one device.
_DEPTH = 2


@click.command("import", epilog=f"Formats: {_FORMATS}.")
@click.argument("path", type=click.Path(path_type=Path))
@folder_options
@click.option("--batch", type=click.IntRange(min=1), help="Samples in the iteration.")
@click.option("--model", help="What was run.")
@click.option("--device", help="What it ran on, for example 'NVIDIA H100'.")
@click.option("--dtype", help="Number format of the feature maps, for example float32.")
@click.option("--date", metavar="YYYY-MM-DD", help="Day of the recording.")
@click.option(
    "--execution-trace",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Execution trace of the run of a PyTorch profile; gives its tensors.",
)
@click.option("--iteration", type=click.IntRange(min=0), help="Which ProfilerStep of a PyTorch profile; else the last.")
@quiet_option
def import_(path: Path, output: Path, force: bool, quiet: bool, **summary: Any) -> None:
    """Turn the recording at PATH into a trace folder. Its format is recognised from its content.

    The options tell what the recording does not say of itself.

    \b
    simgpu trace import recordings/vgg13 -o vgg13-h100 --batch 128 \\
        --device "NVIDIA H100"
    simgpu trace import resnet32-b56.log -o resnet32
    simgpu trace import profile.json.gz --execution-trace graph.json -o vgg13
    """
    with progress(quiet) as say:
        say(f"reading {path.name}")
        if path.is_dir():
            _look_inside(path)
        trace, recognised = import_trace(path, ImportOptions(**summary))
        refuse_another(output, force, trace)
        say(f"writing {output}")
        write_trace(trace, output)
    lines = [
        ("read", f"{path}, a {recognised}"),
        *trace.facts(),
        *([("notes", trace.info.notes)] if trace.info.notes else []),
        ("runs", policies_that_run(trace)),
    ]
    Screen().print(facts(lines))
    show_written(output, "NODE")


def policies_that_run(trace: Trace) -> str:
    """Which policies can run, by what the recording tells."""
    streams = len({kernel.stream for kernel in trace.kernels})
    if not trace.blocks:
        return "ideal alone: the recording has no tensors"
    if not trace.records_reads:
        return "ideal and none: what kernels read is not recorded"
    if streams > 1:
        return f"ideal and none: the kernels ran on {streams} streams, the others take one"
    return "all policies but those that go by sparsity, which is not recorded"


def _look_inside(folder: Path) -> None:
    """Raises `InputError` that names the recordings in a folder that is none itself."""
    try:
        detect(folder)
    except InputError:
        inside = [str(part.relative_to(folder)) for part in _recordings(folder)]
        if not inside:
            raise
        count, one = ("a recording", "it") if len(inside) == 1 else (f"{len(inside)} recordings", "one of them")
        named = ", ".join(inside[:_NAMED]) + (", ..." if len(inside) > _NAMED else "")
        remedy = f"name {one}: simgpu trace import {folder / inside[0]}"
        raise InputError.single(
            folder, "", f"is no recording but a folder that holds {count}: {named}", remedy
        ) from None


def _recordings(folder: Path, depth: int = _DEPTH) -> Iterator[Path]:
    """The recordings below a folder, in the order of their names; a folder that is one is not looked into."""
    try:
        parts = sorted(folder.iterdir())
    except OSError:
        return
    for part in parts:
        if _is_recording(part):
            yield part
        elif depth and part.is_dir() and not part.is_symlink():
            yield from _recordings(part, depth - 1)


def _is_recording(path: Path) -> bool:
    try:
        detect(path)
    except (InputError, OSError):
        return False
    return True
