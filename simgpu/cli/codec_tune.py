"""``simgpu compression tune``: find a codec's launch settings on a GPU, with four methods."""

from __future__ import annotations

import click

from simgpu.cli.screen import Screen, facts, progress, quiet_option, table
from simgpu.cli.suggestions import codecs, nodes, traces
from simgpu.compression.codecs.gpu.paper import FIGURE_12
from simgpu.compression.codecs.gpu.response import response_of
from simgpu.compression.codecs.gpu.tensors import SparseTensor
from simgpu.compression.codecs.gpu.tuner import LaunchTuner, expert_setting
from simgpu.compression.codecs.registry import codec_class
from simgpu.hardware.nodes import load_node
from simgpu.trace.epochs import sparsity_at
from simgpu.trace.folder import load_trace
from simgpu.trace.model import BlockKind
from simgpu.units import format_bytes, format_time

_NAMES = {
    "random": "random",
    "expert": "expert rule",
    "bayesian": "Bayesian search",
    "grid_search": "exhaustive search",
}


@click.command("tune")
@click.option(
    "--node",
    default="v100",
    show_default=True,
    metavar="NODE",
    shell_complete=nodes,
    help="Node whose GPU is modelled: a shipped node or a YAML file.",
)
@click.option(
    "--codec",
    default="zvc",
    show_default=True,
    metavar="NAME",
    shell_complete=codecs,
    help="Codec to tune: zvc, csr, rle or lz4.",
)
@click.option(
    "--trace",
    metavar="TRACE",
    shell_complete=traces,
    help="Tune for the sparse feature maps of this trace. Default: those of VGG-16, as in CSWAP's figure 12.",
)
@click.option(
    "--epoch",
    metavar="N",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="With --trace: training epoch that sets the sparsity.",
)
@click.option(
    "--seed",
    metavar="N",
    type=click.IntRange(0, 2**31 - 1),
    default=0,
    show_default=True,
    help="Random seed of the random choice and the Bayesian search.",
)
@quiet_option
def tune(node: str, codec: str, trace: str | None, epoch: int, seed: int, quiet: bool) -> None:
    """Find the grid and block size of a codec's kernels with four methods.

    The methods are a random choice, an expert's rule, a Bayesian search, and an exhaustive search. Times are the sum
    of encoding and decoding each tensor once (CSWAP, section IV-D and figure 12).

    \b
    simgpu compression tune
    simgpu compression tune --node 2080ti --trace vgg16-b128-v100 --epoch 20
    """
    codec_class(codec)
    gpu = load_node(node).gpu
    tensors = FIGURE_12 if trace is None else _tensors(trace, epoch)
    tuner = LaunchTuner(response_of(gpu), codec, tensors)
    with progress(quiet) as say:
        say("searching")
        result = (tuner.random(seed), tuner.expert(gpu), tuner.bayesian(seed), tuner.grid_search())
    best = result[-1].total_ns
    rows = [
        (
            _NAMES[way.method],
            str(way.setting),
            format_time(way.total_ns),
            f"{way.total_ns / best:.2f}x" if best else "-",
            str(way.evaluations or "-"),
        )
        for way in result
    ]
    size = sum(tensor.bytes for tensor in tensors)
    screen = Screen()
    screen.print(
        facts(
            [
                ("GPU", gpu.name),
                ("tensors", f"{len(tensors)}, {format_bytes(size)}"),
                ("times", tuner.surface.description),
                ("expert rule", f"{expert_setting(gpu)}: 128 threads per block, all threads resident"),
            ]
        )
    )
    screen.print()
    screen.print(table(("method", "(grid, block)", f"{codec} time", "vs. best", "settings tried"), rows))


def _tensors(trace: str, epoch: int) -> tuple[SparseTensor, ...]:
    loaded = load_trace(trace)
    zeros = sparsity_at(loaded, epoch)
    maps = [block for block in loaded.blocks if block.kind is BlockKind.ACTIVATION and zeros.get(block.id)]
    return tuple(SparseTensor(block.bytes, zeros[block.id]) for block in maps)
