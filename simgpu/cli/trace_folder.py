"""The folder that ``simgpu import`` and ``simgpu record`` write, and that they replace only when told to.

Does not live here: writing it (`simgpu.trace.folder`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from simgpu.errors import InputError
from simgpu.trace.folder import read_trace
from simgpu.trace.model import Trace


def folder_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``-o DIR``, given as `output`, and ``--force``."""
    kind = click.Path(path_type=Path)
    command = click.option("--force", is_flag=True, help="Replace another trace in that folder.")(command)
    return click.option("-o", "--output", type=kind, required=True, metavar="DIR", help="Folder to write.")(command)


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
