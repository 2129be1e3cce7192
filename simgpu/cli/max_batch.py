"""``simgpu max-batch``: find the largest batch that fits under each policy, and its throughput."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace

import click
from rich.text import Text

from simgpu.cli.choice import scenario_of, size_option
from simgpu.cli.group import OUT_OF_MEMORY, wrapped
from simgpu.cli.screen import Screen, facts, progress, quiet_option, table
from simgpu.cli.settings import parse_settings
from simgpu.cli.suggestions import ZOO, nodes, policies, scenario_keys, workloads
from simgpu.errors import InputError
from simgpu.experiments.compare import DEFAULT_POLICIES
from simgpu.experiments.largest_batch import LEGEND, MAX_BATCH_HEADINGS, MaxBatch
from simgpu.experiments.max_batch import MOST, max_batch
from simgpu.experiments.scenarios.model import Scenario
from simgpu.policies.registry import parse_policy
from simgpu.simulation.plain_peak import PeakPart
from simgpu.version import __version__

#: Batch size, in samples, at which a network of the zoo is built first; no result depends on it.
_FIRST_BATCH = 32


@click.command("max-batch")
@click.argument("trace", shell_complete=workloads)
@click.option(
    "--node",
    metavar="NODE",
    shell_complete=nodes,
    help="A shipped node or a YAML file. Not with a scenario, which has its own node.",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="POLICY",
    shell_complete=policies,
    help='A policy to run, e.g. "vdnn(mode=conv)". Repeatable. Default: those of the scenario, otherwise '
    f"{', '.join(map(str, DEFAULT_POLICIES))}.",
)
@size_option(
    "--budget",
    "--memory",
    help="Device memory to use, e.g. 10GiB, or 50% of the peak without offloading. Default: all of the node's.",
)
@click.option(
    "--limit", metavar="N", type=click.IntRange(min=1), default=MOST, show_default=True, help="Largest batch to try."
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=scenario_keys,
    help="Change a value in the scenario, its trace or its node, e.g. trace.input=cifar10, iterations=5. Repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@quiet_option
def max_batch_(
    trace: str,
    node: str | None,
    policies: tuple[str, ...],
    budget: str | None,
    limit: int,
    settings: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> None:
    """Find the largest batch of TRACE that fits under each policy, and the largest with at least 80% of the throughput.

    Throughput is simulated at the powers of two up to the largest batch that fits, at that batch, and at up to 4
    batches in between. The first batch in the table is the largest of these with at least 80% of the best throughput.

    TRACE is a shipped trace, a trace folder, zoo:NETWORK (see simgpu zoo list), or a scenario. At batch sizes other
    than its own, a recorded trace is modelled.

    Exit code 3: not even one sample fits under any policy with limited memory. Exit code 2: no policy supports the
    trace and the node.

    \b
    simgpu max-batch vgg16-b128-v100 --node v100 \\
        --policy none --policy "vdnn(mode=conv)"
    simgpu max-batch zoo:mobilenet --node 2080ti --budget 11GB \\
        --set trace.input=cifar10
    simgpu max-batch quickstart --json
    """
    written = {"policies": [parse_policy(text) for text in policies], "budget": budget}
    given = {key: value for key, value in written.items() if value}
    scenario = _scenario(trace, node, given, parse_settings(settings))
    with progress(quiet) as say:
        result = max_batch(scenario, limit=limit, progress=say)
    if as_json:
        click.echo(json.dumps({"simgpu": __version__, **result.to_dict()}, indent=2, allow_nan=False))
    else:
        _show(Screen(), scenario, result)
    if result.nothing_fits:
        sys.exit(OUT_OF_MEMORY)


def _scenario(trace: str, node: str | None, given: Mapping[str, object], settings: Mapping[str, object]) -> Scenario:
    """Loads the scenario that the arguments describe. given: policies and budget, if given."""
    network = trace.removeprefix(ZOO)
    scenario = scenario_of(trace, node, given, settings, batch=_FIRST_BATCH)
    if network != trace and isinstance(scenario.budget, PeakPart):
        what = f"{scenario.budget.percentage!r} is a part of the peak of a batch, and {trace} has no batch of its own"
        raise InputError.single("", "--budget", what, "give a size such as 10GiB")
    # The trace's name contains the first batch size; use the network's name instead.
    return scenario if network == trace else replace(scenario, trace=replace(scenario.trace, name=network))


def _show(screen: Screen, scenario: Scenario, result: MaxBatch) -> None:
    screen.print(Text(scenario.name, style="bold"))
    screen.print(facts(result.facts()))
    screen.print()
    ends = (0, len(MAX_BATCH_HEADINGS) - 1)
    screen.print(table(MAX_BATCH_HEADINGS, result.rows(), left=ends, unbroken=ends[:1]))
    screen.print()
    click.echo(wrapped(LEGEND, before=0))
    for note in result.notes():
        screen.print()
        click.echo(wrapped(note, before=0))
