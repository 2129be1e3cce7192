"""``simgpu validate node``: measure this machine's GPU and link, and write its node file."""

from __future__ import annotations

from pathlib import Path

import click

from simgpu.cli.nodes import show_node
from simgpu.cli.screen import Screen, progress, quiet_option
from simgpu.cli.settings import parse_size
from simgpu.errors import InputError, Problem
from simgpu.hardware.nodes import load_node_file
from simgpu.io.atomic import atomic_file
from simgpu.recorder.machine.bandwidth import DEFAULT_SIZES
from simgpu.recorder.machine.entry import DEFAULT_REPETITIONS, record_node
from simgpu.units import format_bytes

_SIZES = ", ".join(map(format_bytes, DEFAULT_SIZES))


@click.command()
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, metavar="FILE", help="YAML file to write."
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option(
    "--device", default="cuda", show_default=True, metavar="cuda|cuda:N", help="GPU to measure; cuda: all of its kind."
)
@click.option("--sizes", default=_SIZES, show_default=True, metavar="SIZE,SIZE...", help="Copy sizes to measure.")
@click.option(
    "--repetitions",
    metavar="N",
    type=click.IntRange(min=1),
    default=DEFAULT_REPETITIONS,
    show_default=True,
    help="Repetitions of each copy.",
)
@quiet_option
def node(output: Path, force: bool, device: str, sizes: str, repetitions: int, quiet: bool) -> None:
    """Measure this machine's GPU and its link to the host, and write a node file.

    Measures the bandwidth and latency of host-to-device and device-to-host copies with pinned memory, and the
    bandwidth of copies with pageable memory and on the GPU. Queries the memory, multiprocessors, copy engines and
    architecture of the GPU, and the host's memory and cores. The file states the source of each value. Run it while
    the GPUs are otherwise idle. Needs PyTorch: install simgpu with the extra 'record'.

    Several GPUs of one kind also copy at the same time, in each direction and in both: the file then has the switches
    and the bandwidth of host memory that they share. --device cuda:0 measures one alone.

    \b
    simgpu validate node -o my-node.yaml
    simgpu validate node -o second.yaml --device cuda:1 --sizes "1 MiB, 1 GiB"
    simgpu run vgg11-cifar-cpu --set node=my-node.yaml
    """
    _check_output(output, force)
    with progress(quiet) as say:
        say(f"measuring {device}")
        text = record_node(output.stem, device=device, sizes=_bytes_of(sizes), repetitions=repetitions)
    with atomic_file(output) as part:
        part.write_text(text, encoding="utf-8")
    screen = Screen()
    show_node(screen, load_node_file(output))
    click.echo(f"\nwritten to {output}")


def _check_output(output: Path, force: bool) -> None:
    if output.suffix not in (".yaml", ".yml"):
        raise InputError.single(output, "", "is not named as a YAML file", "use a name that ends in .yaml")
    if not output.parent.is_dir():
        raise InputError.single(output, "", "its folder does not exist", f"create {output.parent} first")
    if output.is_dir() or (output.exists() and not force):
        remedy = "choose another name" if output.is_dir() else "choose another name, or replace it with --force"
        raise InputError.single(output, "", "already exists", remedy)


def _bytes_of(sizes: str) -> list[int]:
    result: list[int] = []
    problems: list[Problem] = []
    for text in sizes.split(","):
        try:
            result.append(parse_size(text.strip(), "--sizes"))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return result
