"""``simgpu compression measure``: compressed sizes and ratios of one array, by codec and layout."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
from numpy.typing import NDArray

from simgpu.cli import suggestions
from simgpu.cli.screen import Screen, facts, progress, quiet_option, table
from simgpu.compression.codecs.base import LARGEST_WINDOW, SMALLEST_WINDOW
from simgpu.compression.codecs.elements import bits_of, format_of, sparsity_of
from simgpu.compression.codecs.measure import LAYOUTS, Measurement, load_array, measure
from simgpu.compression.codecs.registry import codec_names
from simgpu.errors import InputError
from simgpu.io.free_memory import require_memory
from simgpu.units import format_bytes, parse_bytes

_WINDOW = format_bytes(SMALLEST_WINDOW)


@click.command("measure")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--codec",
    "codecs",
    multiple=True,
    metavar="NAME",
    shell_complete=suggestions.codecs,
    help=f"Codec to measure: {', '.join(codec_names())}. Repeatable. Default: all.",
)
@click.option(
    "--layout",
    "layouts",
    multiple=True,
    metavar="NAME",
    shell_complete=suggestions.suggest(lambda: LAYOUTS),
    help=f"Layout to measure: {', '.join(LAYOUTS)}. Repeatable. Default: all.",
)
@click.option(
    "--window",
    default=_WINDOW,
    show_default=True,
    metavar="SIZE",
    help=f"Size of the windows that are compressed independently, {_WINDOW} to {format_bytes(LARGEST_WINDOW)}.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@quiet_option
def measure_(
    file: Path, codecs: tuple[str, ...], layouts: tuple[str, ...], window: str, as_json: bool, quiet: bool
) -> None:
    """Compress the array in FILE (.npy) and print its compressed size and ratio, by codec and layout.

    The axes of a four-dimensional array are taken as N, C, H, W. Other arrays are measured only as stored. Sizes
    exclude the stream header.

    \b
    simgpu compression measure relu1.npy
    simgpu compression measure relu1.npy --codec zvc --codec zlib \\
        --layout nhwc --window "64 KiB"
    """
    try:
        size = parse_bytes(window)
    except ValueError as error:
        raise InputError.single("", "window", str(error)) from None
    array = load_array(file)
    if array.ndim == 4:
        require_memory(file, [file], 1)  # layouts are copied one at a time
    with progress(quiet) as say:
        say("counting zeros")
        sparsity = sparsity_of(bits_of(array))
        result = measure(array, codecs, layouts, size, say)
    if as_json:
        click.echo(json.dumps(_document(file, array, sparsity, size, result), indent=2, allow_nan=False))
        return
    screen = Screen()
    screen.print(facts(_facts(file, array, sparsity, size)))
    screen.print()
    screen.print(table(("codec", "layout", "size", "ratio"), _rows(result), left=(0, 1)))


def _facts(file: Path, array: NDArray[Any], sparsity: float, window: int) -> Iterator[tuple[str, str]]:
    axes = "x".join(map(str, array.shape)) or "scalar"
    yield "array", f"{file}: {axes}, {format_of(array.dtype)}, {format_bytes(array.nbytes)}"
    yield "zeros", f"{sparsity:.1%} (all bits zero)"
    yield "window", format_bytes(window)
    if array.ndim != 4:
        yield "layouts", f"not measured: layouts need four axes (N, C, H, W), this array has {array.ndim}"


def _rows(measurements: Iterable[Measurement]) -> Iterator[tuple[str, ...]]:
    """Table rows; only the first row of a codec contains its name."""
    before = ""
    for row in measurements:
        ratio = "-" if row.ratio is None else f"{row.ratio:.3f}x"
        yield "" if row.codec == before else row.codec, row.layout, format_bytes(row.compressed), ratio
        before = row.codec


def _document(
    file: Path, array: NDArray[Any], sparsity: float, window: int, measurements: Iterable[Measurement]
) -> dict[str, Any]:
    return {
        "file": str(file),
        "shape": list(array.shape),
        "format": format_of(array.dtype),
        "bytes": array.nbytes,
        "sparsity": sparsity,
        "window": window,
        "sizes": [
            {"codec": row.codec, "layout": row.layout, "bytes": row.compressed, "ratio": row.ratio}
            for row in measurements
        ],
    }
