"""``simgpu check``: compare scenarios with their stored timings."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill

import click
from rich.text import Text

from simgpu.cli.screen import Screen, progress, quiet_option
from simgpu.cli.settings import parse_settings
from simgpu.cli.suggestions import scenario_keys, scenarios
from simgpu.errors import InputError, Problem
from simgpu.experiments.regression.check import CheckOutcome, check_scenarios
from simgpu.experiments.regression.text import WIDTH, difference_text
from simgpu.experiments.regression.tolerances import parse_tolerances
from simgpu.experiments.scenarios.load import load_scenario
from simgpu.experiments.scenarios.model import Scenario
from simgpu.version import __version__

DIFFERS = 1
_STYLES = {"differs": "bold red", "not stored": "bold red", "same": "green"}


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="SCENARIO...", shell_complete=scenarios)
@click.option(
    "--against",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder of stored timings, with one subfolder per scenario.",
)
@click.option("--update", is_flag=True, help="Store the current results and list what changed, instead of checking.")
@click.option(
    "--tolerance",
    "tolerances",
    multiple=True,
    metavar="METRIC=VALUE",
    help='Allowed difference of a metric, e.g. iteration_ns=1%, "stalled_*=20 us". Repeatable; the last match applies.',
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=scenario_keys,
    help='Change a value in every scenario or its node, e.g. node.gpu.memory="8 GiB". Repeatable.',
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@quiet_option
def check(
    names: tuple[str, ...],
    against: Path,
    update: bool,
    tolerances: tuple[str, ...],
    settings: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> None:
    """Run each SCENARIO (a shipped name or a YAML file) and compare it with its stored result.

    Metrics, counts and every event of the timeline must be equal. For each difference it prints the delta, and the
    first event at which the timelines differ.

    A tolerance is a percentage of the stored value (1%), a time (20 us), a size (1 MiB), or a plain number for metrics
    without a unit. METRIC may contain *. Tolerances can also be stored in DIR/tolerances.yaml; --tolerance takes
    precedence. With any tolerance above 0, a timeline difference is printed but does not count as a failure.

    The --set values are stored with the result, and must be the same when checking.

    Exit code 1: a scenario differs or is not stored. Exit code 2: bad input.

    \b
    simgpu check quickstart vgg16-v100 --against timings --update
    simgpu check quickstart vgg16-v100 --against timings
    simgpu check my-study.yaml --against timings --tolerance "*=0.1%"
    """
    if update and tolerances:
        raise click.UsageError("--update stores every difference: leave out --tolerance.")
    allowed = parse_tolerances(parse_settings(tolerances, "tolerance", "--tolerance iteration_ns=1%"))
    overrides = parse_settings(settings)
    loaded = _loaded(names, overrides)
    checked: list[CheckOutcome] = []
    screen = Screen()
    with progress(quiet) as say:
        for result in check_scenarios(
            loaded, against, overrides=overrides, tolerances=allowed, update=update, progress=say
        ):
            checked.append(result)
            if not as_json:
                _show(screen, result)
    failed = [result for result in checked if result.failed]
    if as_json:
        document = {
            "schema": "simgpu.check/1",
            "simgpu": __version__,
            "against": str(against),
            "same": all(result.verdict == "same" for result in checked),
            "scenarios": [result.to_dict() for result in checked],
        }
        click.echo(json.dumps(document, indent=2, allow_nan=False))
    elif not update:
        _show_sum(screen, checked, failed)
    if failed:
        sys.exit(DIFFERS)


def _loaded(names: Sequence[str], overrides: Mapping[str, object]) -> list[Scenario]:
    """Loads the scenarios. Raises one `InputError` with the problems of all."""
    scenarios: list[Scenario] = []
    problems: list[Problem] = []
    for name in names:
        try:
            scenarios.append(load_scenario(name, overrides))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(dict.fromkeys(problems))
    return scenarios


def _show(screen: Screen, outcome: CheckOutcome) -> None:
    """Prints a scenario's verdict and its differences."""
    verdict, details = _verdict(outcome)
    screen.print(Text.assemble(f"{outcome.name}: ", (verdict, _STYLES.get(outcome.verdict, ""))))
    for line in details.splitlines():
        screen.print(Text(f"  {line}"))


def _verdict(outcome: CheckOutcome) -> tuple[str, str]:
    difference = outcome.difference
    match outcome.verdict:
        case "not stored":
            return "no stored result; --update writes it", ""
        case "new":
            return "new", ""
        case "replaced":
            return "replaced; the stored result could not be read", ""
        case "changed" if difference is not None:
            return "changed", "\n".join(fill(text, WIDTH, subsequent_indent="  ") for text in difference.changed)
        case "same" if difference is not None and any(policy.values for policy in difference.policies):
            return "same within tolerances", difference_text(difference)
    return outcome.verdict, "" if difference is None or difference.empty else difference_text(difference)


def _show_sum(screen: Screen, checked: list[CheckOutcome], failed: list[CheckOutcome]) -> None:
    names = ", ".join(result.name for result in failed)
    if failed:
        screen.print(
            Text(f"\n{len(failed)} of {len(checked)} differ from stored: {names}; --update stores the current results")
        )
    elif len(checked) > 1:
        screen.print(Text(f"\nall {len(checked)} same as stored"))
