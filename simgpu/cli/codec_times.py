"""``simgpu compression times``: prediction errors of regression models for codec times."""

from __future__ import annotations

import click

from simgpu.cli.screen import Screen, facts, progress, quiet_option, table
from simgpu.cli.suggestions import nodes
from simgpu.compression.codecs.gpu.compare import COUNT, compare_models, mean_errors
from simgpu.compression.codecs.gpu.response import response_of
from simgpu.compression.codecs.gpu.samples import NOISE
from simgpu.compression.codecs.gpu.timemodel import PIECES
from simgpu.hardware.nodes import load_node

_NAMES = {
    "linear": "linear, per sparsity range",
    "linear_all": "linear, one for all ranges",
    "bayesian_ridge": "Bayesian ridge",
    "svm": "support vector machine",
    "decision_tree": "decision tree",
}


@click.command("times")
@click.option(
    "--node",
    default="v100",
    show_default=True,
    metavar="NODE",
    shell_complete=nodes,
    help="Node whose GPU is modelled: a shipped node or a YAML file.",
)
@click.option(
    "--seed",
    metavar="N",
    type=click.IntRange(0, 2**31 - 1),
    default=0,
    show_default=True,
    help="Random seed of the samples.",
)
@quiet_option
def times(node: str, seed: int, quiet: bool) -> None:
    """Compare regression models that predict encoding and decoding times, on held-out samples.

    Errors are relative absolute errors, averaged over all codecs, encoding and decoding (CSWAP, section V-C and
    figure 10).

    \b
    simgpu compression times
    simgpu compression times --node 2080ti --seed 1
    """
    surface = response_of(load_node(node).gpu)
    with progress(quiet) as say:
        say("training")
        errors = compare_models(surface, seed=seed)
    rows = [(_NAMES[model], f"{near:.1%}", f"{wide:.1%}") for model, (near, wide) in mean_errors(errors).items()]
    noise = f"{COUNT} for training and {COUNT} per test, 20 to 2000 MB, with {NOISE:.1%} noise (measured on a CPU)"
    screen = Screen()
    screen.print(
        facts(
            [
                ("GPU", surface.gpu),
                ("codecs", ", ".join(surface.codecs)),
                ("times", surface.description),
                ("samples", noise),
                ("ranges", f"{PIECES}, from 20% to 80% zeros"),
            ]
        )
    )
    screen.print()
    screen.print(table(("regression", "20-80% zeros", "20-90% zeros"), rows))
