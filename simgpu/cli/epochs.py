"""``simgpu epochs``: run a scenario's policies in each training epoch, and show their decisions."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import click
from rich.text import Text

from simgpu.cli.choice import ScenarioChoice, choice_options
from simgpu.cli.group import BAD_INPUT, OUT_OF_MEMORY, show_error
from simgpu.cli.run_tables import show_notes
from simgpu.cli.screen import WIDTH, Screen, facts, progress, table
from simgpu.cli.settings import parse_epochs
from simgpu.errors import InputError, MissingExtraError, OutOfMemoryError
from simgpu.experiments.outputs import check_outputs, trainings_document, write_trainings
from simgpu.experiments.scenarios.model import PolicyChoice, Scenario
from simgpu.experiments.training import Training, train
from simgpu.policies.base import policy_label
from simgpu.policies.registry import make_policy
from simgpu.trace.epochs import epochs_of
from simgpu.units import format_time
from simgpu.version import __version__

_HEADINGS = ("policy", "step time", "samples/s", "vs. first", "swapping", "codec share")
_MARKS = {None: " ", "": "."}
_COMPRESSED = "#"


@click.command()
@choice_options
@click.option(
    "--epochs",
    "chosen",
    metavar="LIST",
    help="Epochs and ranges of epochs to run, e.g. 0,10,20-30. Default: all epochs in the trace.",
)
@click.option(
    "--iterations-per-epoch",
    metavar="N",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Iterations in an epoch. One is simulated; totals count it this many times.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write results and figures to this folder.",
)
def epochs(
    choice: ScenarioChoice,
    as_json: bool,
    quiet: bool,
    chosen: str | None,
    iterations_per_epoch: int,
    output: Path | None,
) -> None:
    """Run the policies of SCENARIO in each epoch of a training; show mean results and compression decisions.

    Each epoch is represented by one iteration in steady state. The trace must contain sparsity or compressed sizes by
    epoch. Instead of SCENARIO, --trace and --node select what to run.

    Exit code 3: every policy ran out of memory. Exit code 2: no policy supports the trace and the node.

    \b
    simgpu epochs --trace vgg16-b128-v100 --node v100 \\
        --policy "vdnn: {mode: conv}" --policy cswap
    simgpu epochs vgg16-v100 --epochs 0,10,48
    """
    scenario = choice.load()
    if output is not None:
        check_outputs(output, ())
    about = {"simgpu": __version__, "scenario": scenario.name, "description": scenario.description}
    numbers = parse_epochs(chosen) if chosen is not None else epochs_of(scenario.trace)
    trainings, failures = [], []
    with progress(quiet) as say:
        for policy in scenario.policies:
            try:
                trainings.append(_train(scenario, policy, numbers, iterations_per_epoch, say))
            except OutOfMemoryError as error:
                failures.append((f"{', '.join(error.__notes__)}: {error}", OUT_OF_MEMORY))
            except (InputError, MissingExtraError) as error:
                failures.append((f"{policy_label(make_policy(*policy))}: {error}", BAD_INPUT))
        if output is not None and trainings:
            say("writing the outputs")
            write_trainings(trainings, output, about=about)
    if as_json:
        click.echo(json.dumps(trainings_document(trainings, about), indent=2, allow_nan=False))
    elif trainings:
        _show(scenario, trainings, numbers)
        if output is not None:
            click.echo(f"\nwritten to {output}")
    for failure, _ in failures:
        show_error(failure)
    if not trainings:
        sys.exit(max(code for _, code in failures))


def _train(
    scenario: Scenario,
    policy: PolicyChoice,
    numbers: Sequence[int],
    iterations_per_epoch: int,
    say: Callable[[str], None],
) -> Training:
    return train(
        scenario.trace,
        scenario.node,
        make_policy(*policy),
        scenario.config,
        epochs=numbers,
        iterations_per_epoch=iterations_per_epoch,
        progress=say,
    )


def _show(scenario: Scenario, trainings: Sequence[Training], numbers: Sequence[int]) -> None:
    screen = Screen()
    first, count = trainings[0], len(trainings[0].epochs)
    title = f"means over {count} epochs, {numbers[0]} to {numbers[-1]}" if count > 1 else f"epoch {numbers[0]}"
    screen.print(Text(scenario.name, style="bold"))
    screen.print(facts([*scenario.facts(), ("run", title)]))
    screen.print()
    screen.print(table(_HEADINGS, [_row(training, first) for training in trainings]))
    for training in trainings:
        if any(training.counts):
            screen.print()
            show_decisions(screen, training)
    show_notes(screen, ((training.label, note) for training in trainings for note in training.notes))


def _row(training: Training, first: Training) -> tuple[str, ...]:
    iterations = sum(epoch.iterations for epoch in training.epochs)
    metrics = [(epoch.result.metrics, epoch.iterations) for epoch in training.epochs]
    swapping = sum(result.swapping_ns * weight for result, weight in metrics)
    codecs = sum((result.codec_share or 0) * result.swapping_ns * weight for result, weight in metrics)
    return (
        training.label,
        format_time(training.total_ns // iterations),
        f"{training.samples_per_s:.4g}",
        f"{first.total_ns / training.total_ns:.3f}x" if training.total_ns else "-",
        format_time(swapping // iterations),
        f"{codecs / swapping:.1%}" if codecs else "-",
    )


def show_decisions(screen: Screen, training: Training) -> None:
    """Prints which blocks are offloaded compressed in which epoch, and how many (CSWAP, figures 9 and 8)."""
    numbers = [epoch.number for epoch in training.epochs]
    names = max(map(len, training.decisions), default=0)
    shown = _spread(len(numbers), WIDTH - names - 2)
    screen.print(Text(f"{training.label}: {_COMPRESSED} compressed, . uncompressed", style="bold"))
    for block, row in training.decisions.items():
        marks = "".join(_MARKS.get(row[at], _COMPRESSED) for at in shown)
        screen.print(f"{block:<{names}}  {marks}")
    span = f"{numbers[shown[0]]} to {numbers[shown[-1]]}"
    every = "" if len(shown) == len(numbers) else f", {len(shown)} of {len(numbers)}"
    screen.print(f"{'':<{names}}  epochs {span}{every}")
    screen.print(f"compressed: {_runs(numbers, training.counts)}")


def _spread(count: int, most: int) -> Sequence[int]:
    """At most `most` positions, spread evenly over `count`."""
    return range(count) if count <= most else [at * (count - 1) // (most - 1) for at in range(most)]


def _runs(numbers: Sequence[int], counts: Iterable[int]) -> str:
    """Formats each change of the count with the first epoch it applies to."""

    def changes() -> Iterator[str]:
        before = None
        for number, count in zip(numbers, counts, strict=True):
            if count != before:
                yield f"{count} from epoch {number}" if before is not None else f"{count} at epoch {number}"
            before = count

    return ", ".join(changes())
