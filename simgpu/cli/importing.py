"""``simgpu trace import``: convert another tool's recording into a trace folder."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from simgpu.cli.screen import Screen, facts, progress, quiet_option
from simgpu.cli.trace_folder import folder_options, refuse_another, show_written
from simgpu.errors import InputError
from simgpu.importers import IMPORTERS, ImportOptions, detect, has_only_allocations, import_trace
from simgpu.importers.snapshot.load import load_snapshot
from simgpu.trace.allocation_folder import is_allocation_folder, write_allocations
from simgpu.trace.folder import write_trace
from simgpu.trace.model import Trace

_FORMATS = "; ".join(f"{importer.name} ({importer.looks_like})" for importer in IMPORTERS)

_NAMED = 20
#: Levels of subfolders to search for recordings.
_DEPTH = 2


@click.command("import", epilog=f"Formats: {_FORMATS}.")
@click.argument("path", type=click.Path(path_type=Path))
@folder_options
@click.option("--batch", metavar="N", type=click.IntRange(min=1), help="Batch size in samples.")
@click.option("--model", help="Name of the model that was run.")
@click.option("--device", help="Device that the model ran on, e.g. 'NVIDIA H100'.")
@click.option("--dtype", help="Number format of the feature maps, e.g. float32.")
@click.option("--date", metavar="YYYY-MM-DD", help="Date of the recording.")
@click.option(
    "--execution-trace",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="For a PyTorch profile: the execution trace of the same run, which contains the tensors.",
)
@click.option(
    "--iteration",
    metavar="N",
    type=click.IntRange(min=0),
    help="For a PyTorch profile: number of the ProfilerStep to import. Default: the last.",
)
@click.option(
    "--profile",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="For a PyTorch memory snapshot: the profile of the same run, which contains the kernels.",
)
@click.option(
    "--gpu",
    metavar="N",
    type=click.IntRange(min=0),
    help="For a PyTorch memory snapshot: number of the GPU, if there are several.",
)
@quiet_option
def import_(
    path: Path, output: Path, force: bool, quiet: bool, profile: Path | None, gpu: int | None, **summary: Any
) -> None:
    """Convert the recording at PATH into a trace folder. The format is detected from the content.

    Use --batch, --model, --device, --dtype and --date for information that the recording does not contain.

    A PyTorch memory snapshot becomes a folder of allocations without kernels, which `simgpu memory` explains. With the
    profile of the same run (--profile), both become a trace with kernels.

    \b
    simgpu trace import recordings/vgg13 -o vgg13-h100 --batch 128 \\
        --device "NVIDIA H100"
    simgpu trace import resnet32-b56.log -o resnet32
    simgpu trace import profile.json.gz --execution-trace graph.json -o vgg13
    simgpu trace import snapshot.pickle -o allocations
    simgpu trace import snapshot.pickle --profile profile.json -o vgg13
    """
    has_allocations = has_only_allocations(path) or is_allocation_folder(path)
    if profile is not None:
        if not has_allocations:
            what = "is not a PyTorch memory snapshot; --profile applies only to one"
            raise InputError.single(path, "", what, f"omit it, or import the profile alone: {profile}")
        path, summary = profile, {**summary, "snapshot": path, "gpu": gpu}
    elif has_only_allocations(path):
        _import_allocations(path, output, force, quiet, gpu, summary)
        return
    with progress(quiet) as say:
        say(f"reading {path.name}")
        if path.is_dir():
            _look_inside(path)
        if gpu is not None and profile is None:
            what = "is not a PyTorch memory snapshot; --gpu applies only to one"
            raise InputError.single(path, "", what, "omit it")
        trace, recognised = import_trace(path, ImportOptions(**summary))
        refuse_another(output, force, trace)
        say(f"writing {output}")
        write_trace(trace, output)
    lines = [
        ("read", f"{path}, a {recognised}"),
        *trace.facts(),
        *([("notes", trace.info.notes)] if trace.info.notes else []),
        ("policies", policies_that_run(trace)),
    ]
    Screen().print(facts(lines))
    show_written(output, "NODE")


def _import_allocations(
    path: Path, output: Path, force: bool, quiet: bool, gpu: int | None, summary: Mapping[str, Any]
) -> None:
    """Convert a memory snapshot into a folder of allocations."""
    for option in (name for name, value in summary.items() if value is not None):
        what = f"is a PyTorch memory snapshot; --{option.replace('_', '-')} applies to recordings with kernels"
        raise InputError.single(path, "", what, "omit it")
    with progress(quiet) as say:
        say(f"reading {path.name}")
        trace = load_snapshot(path, gpu)
        refuse_another(output, force, trace)
        say(f"writing {output}")
        write_allocations(trace, output)
    moments = sum(event.time_us is not None for event in trace.events)
    lines = [
        ("read", f"{path}, a {trace.tool}, GPU {trace.gpu}"),
        ("events", f"{len(trace.events)}, {'with' if moments else 'without'} times; {len(trace.marks)} marks"),
        ("allocations", f"{len(trace.allocations)}, of which {len(trace.begun_before)} began before the recording"),
        ("not recorded", "kernel times and what kernels read: no policy can run on it"),
    ]
    Screen().print(facts(lines))
    click.echo(f"\nwritten to {output}\nto explain it: simgpu memory {shlex.quote(str(output))}")


def policies_that_run(trace: Trace) -> str:
    """The policies that can run the trace, given its recorded data."""
    streams = len({kernel.stream for kernel in trace.kernels})
    if not trace.blocks:
        return "only ideal: the recording has no tensors"
    if not trace.records_reads:
        return "only ideal and none: the tensors that kernels read are not recorded"
    if streams > 1:
        return f"only ideal and none: the kernels ran on {streams} streams; other policies support one"
    return "all except those that use sparsity, which is not recorded"


def _look_inside(folder: Path) -> None:
    """If a folder is not a recording, raises `InputError` that names the recordings in it."""
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
            folder, "", f"is not a recording but a folder that contains {count}: {named}", remedy
        ) from None


def _recordings(folder: Path, depth: int = _DEPTH) -> Iterator[Path]:
    """The recordings below a folder, ordered by name. A folder that is a recording is not searched."""
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
