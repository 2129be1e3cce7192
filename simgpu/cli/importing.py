"""``simgpu import``: another tool's recording as a trace folder."""

from __future__ import annotations

from pathlib import Path

import click

from simgpu.cli.report import origin_line, trace_line
from simgpu.cli.screen import console, facts, progress
from simgpu.trace.folder import write_trace
from simgpu.trace.importers import import_trace


@click.command("import")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Folder to write.")
def import_(path: Path, output: Path) -> None:
    """Turn the recording at PATH into a trace folder. Its format is recognised from its content.

    Formats: TrioSim CSV (a folder with trace.csv and tensor.csv) and DTR logs.

    \b
    simgpu import recordings/vgg13 -o traces/vgg13-h100
    simgpu import resnet32-b56.log -o traces/resnet32
    """
    with progress(quiet=False) as say:
        say(f"reading {path.name}")
        trace, recognised = import_trace(path)
        say(f"writing {output}")
        write_trace(trace, output)
    lines = [("read", f"{path}, a {recognised}"), ("trace", trace_line(trace)), ("origin", origin_line(trace))]
    console().print(facts([*lines, ("written", str(output))]))
