"""Options, checks and messages of commands that write a trace folder."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

import click

from simgpu.errors import InputError, Problem
from simgpu.io.shipped import shipped_names
from simgpu.trace.allocation_folder import FILE as ALLOCATIONS
from simgpu.trace.allocation_folder import read_allocations
from simgpu.trace.allocations import AllocationTrace
from simgpu.trace.folder import read_trace
from simgpu.trace.model import Trace
from simgpu.workloads.timemodel.host import launch_note

_TRACE_FILES = ("trace.yaml", "kernels.csv", "blocks.csv", ALLOCATIONS)


def folder_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``-o DIR``, passed as `output`, and ``--force``."""
    kind = click.Path(path_type=Path)
    command = click.option("--force", is_flag=True, help="Replace a different trace in the folder.")(command)
    return click.option("-o", "--output", type=kind, required=True, metavar="DIR", help="Folder to write.")(command)


def show_written(folder: Path, node: str) -> None:
    """Prints the path of a written trace and the command to run it. node: the node in that command."""
    # A name of a shipped trace takes precedence over a folder.
    name = f"./{folder}" if str(folder) in shipped_names("traces") else str(folder)
    click.echo(f"\nwritten to {folder}")
    click.echo(f"to run it: simgpu run --trace {shlex.quote(name)} --node {shlex.quote(node)}")


def refuse_another(folder: Path, force: bool, new: Trace | AllocationTrace | None = None) -> None:
    """Raises `InputError` if writing would overwrite a different trace in the folder.

    new: the trace to write, None if not known yet. A trace equal to it may be replaced.
    """
    real = folder.resolve()
    if force or not any((real / file).exists() for file in _TRACE_FILES):
        return
    if new is not None:
        try:
            if (read_allocations if isinstance(new, AllocationTrace) else read_trace)(real) == new:
                return
        except InputError:
            pass  # an unreadable trace is treated as different
    remedy = "choose another folder, or replace it with --force"
    raise InputError.single(folder, "", "contains a different trace, which would be overwritten", remedy)


def refuse_inside(folders: Mapping[str, Path | None]) -> None:
    """Raises `InputError` if an output folder is another output folder or inside it; each is replaced atomically.

    folders: by option; None for options that were not given.
    """
    named = {option: folder.resolve() for option, folder in folders.items() if folder is not None}
    options = list(named)
    problems = [
        Problem(inner, "", f"'{folders[inner]}' is the folder of {outer}, or inside it", "use separate folders")
        for outer, inner in permutations(options, 2)
        if named[inner].is_relative_to(named[outer])
        and (named[inner] != named[outer] or options.index(outer) < options.index(inner))
    ]
    if problems:
        raise InputError(problems)


def launch_facts(trace: Trace) -> list[tuple[str, str]]:
    """A row on the time of launches, where these may be what limits a modelled iteration."""
    note = launch_note(len(trace.kernels), trace.compute_ns)
    return [("launches", note)] if note else []
