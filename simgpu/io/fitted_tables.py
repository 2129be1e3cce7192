"""A command line for programs that fit a shipped table and write it atomically."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from simgpu.errors import InputError, MissingExtraError
from simgpu.io.atomic import atomic_file


def write_fitted(
    prog: str,
    description: str,
    source: tuple[str, str],
    fitted: Callable[[Path], str],
    arguments: Sequence[str] | None = None,
) -> int:
    """Runs the command ``PROG SOURCE -o FILE``; returns its exit code: 0, or 2 for bad input.

    source: the input of the fit, as the name of the argument and its help. fitted: the table's text from that input.
    """
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("source", type=Path, metavar=source[0], help=source[1])
    parser.add_argument("-o", "--output", type=Path, required=True, help="file to write")
    given = parser.parse_args(arguments)
    try:
        table = fitted(given.source)
        with atomic_file(given.output) as part:
            part.write_bytes(table.encode())
    except (InputError, MissingExtraError) as error:
        for line in str(error).splitlines():
            print(f"Error: {line}", file=sys.stderr)
        return 2
    return 0
