"""The folder that ``simgpu trace import`` and ``simgpu record`` write, and that they replace only when told to.

With it, what is said of the folder when it is there.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

import click

from simgpu.errors import InputError, Problem
from simgpu.io.shipped import shipped_names
from simgpu.trace.folder import read_trace
from simgpu.trace.model import Trace


def folder_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``-o DIR``, given as `output`, and ``--force``."""
    kind = click.Path(path_type=Path)
    command = click.option("--force", is_flag=True, help="Replace another trace in that folder.")(command)
    return click.option("-o", "--output", type=kind, required=True, metavar="DIR", help="Folder to write.")(command)


def show_written(folder: Path, node: str) -> None:
    """The last lines of a command that wrote a trace: where it is, and how it is run. node: one to run it on."""
    # A bare word is a shipped trace first.
    name = f"./{folder}" if str(folder) in shipped_names("traces") else str(folder)
    click.echo(f"\nwritten to {folder}")
    click.echo(f"to run it: simgpu run --trace {shlex.quote(name)} --node {shlex.quote(node)}")


def refuse_another(folder: Path, force: bool, new: Trace | None = None) -> None:
    """Raises `InputError` where a trace in the folder would be lost.

    new: the trace that is to be written, None while it is not known. One that is equal to it may be replaced.
    """
    real = folder.resolve()
    if force or not any((real / file).exists() for file in ("trace.yaml", "kernels.csv", "blocks.csv")):
        return
    if new is not None:
        try:
            if read_trace(real) == new:
                return
        except InputError:
            pass  # what cannot be read is not equal
    remedy = "choose another folder, or replace it with --force"
    raise InputError.single(folder, "", "holds another trace, which would be lost", remedy)


def refuse_inside(folders: Mapping[str, Path | None]) -> None:
    """Raises `InputError` where a folder is to be written at the place of another or inside it: each is written whole.

    folders: by the option that names them; None where it was left out.
    """
    named = {option: folder.resolve() for option, folder in folders.items() if folder is not None}
    options = list(named)
    problems = [
        Problem(inner, "", f"'{folders[inner]}' is the folder of {outer}, or inside it", "name one next to it")
        for outer, inner in permutations(options, 2)
        if named[inner].is_relative_to(named[outer])
        and (named[inner] != named[outer] or options.index(outer) < options.index(inner))
    ]
    if problems:
        raise InputError(problems)
