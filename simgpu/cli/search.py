"""``simgpu search``: search a placement with a policy; show its convergence and the action on each feature map."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.text import Text

from simgpu.cli.choice import is_scenario, scenario_of, size_option
from simgpu.cli.group import OUT_OF_MEMORY, show_error, wrapped
from simgpu.cli.screen import Screen, facts, indented, progress, quiet_option, table
from simgpu.cli.settings import parse_settings
from simgpu.cli.suggestions import ZOO, nodes, policies, scenario_keys, workloads
from simgpu.experiments.outputs import SEARCH_FOLDER, searches_document, write_searches
from simgpu.experiments.scenarios.model import Scenario
from simgpu.experiments.search import check_searched, search_placement
from simgpu.experiments.search_result import PlacedMap, Search
from simgpu.policies.registry import parse_policy
from simgpu.simulation.plain_peak import budget_text
from simgpu.simulation.run import task_graph
from simgpu.units import format_bytes, format_time
from simgpu.version import __version__

#: Whatever pool a scenario has: placements are predicted without an allocator.
_POOL = "counting"
_DEFAULT = "home"
#: Rows of the placement printed on the terminal; files contain all.
_ROWS = 12


@click.command()
@click.argument("trace", shell_complete=workloads)
@click.option(
    "--node",
    metavar="NODE",
    shell_complete=nodes,
    help="A shipped node or a YAML file. Not with a scenario, which has its own node.",
)
@click.option(
    "--batch", metavar="N", type=click.IntRange(min=1), help="Batch size in samples. Default: that of the trace."
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="POLICY",
    shell_complete=policies,
    help=f'A policy to search with, e.g. "home(update=full)". Repeatable. Default: {_DEFAULT}.',
)
@size_option(
    "--budget",
    "--memory",
    help="Device memory to use, e.g. 10GiB, or 50% of the peak without offloading. Default: all of the node's.",
)
@click.option(
    "--seed",
    metavar="N",
    type=click.IntRange(min=0),
    help="Random seed of the search. Default: the scenario's, otherwise 0.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=scenario_keys,
    help="Change a value in the scenario, its trace or its node, e.g. trace.input=cifar10. Repeatable.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write tables and figures to this folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@quiet_option
def search(
    trace: str,
    node: str | None,
    batch: int | None,
    policies: tuple[str, ...],
    budget: str | None,
    seed: int | None,
    settings: tuple[str, ...],
    output: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Search the best action (keep, offload or recompute) for each feature map of TRACE; show the convergence.

    TRACE is a shipped trace, a trace folder, zoo:NETWORK (needs --batch), or a scenario, whose own policies are
    ignored. `simgpu zoo list` lists the networks. Only policies that decide on each feature map separately can be used:
    home, superneurons, capuchin(version=home), joint.

    Bytes are counted, without an allocator's fragmentation, whatever pool a scenario has.

    Exit code 3: no placement fits the budget.

    \b
    simgpu search vgg16-b128-v100 --node v100 --budget 6GiB
    simgpu search quickstart --policy home --policy "home(update=full)" -o out
    simgpu search zoo:mobilenet --batch 3954 --node 2080ti --budget 11GB \\
        --set trace.input=cifar10 --set trace.framework=pytorch-1.5
    """
    written = {"policies": [parse_policy(text) for text in policies] or [_DEFAULT], "budget": budget, "seed": seed}
    given = {key: value for key, value in written.items() if value is not None}
    changes = parse_settings(settings)
    if changes.get("pool", _POOL) != _POOL:
        raise click.UsageError(f"search counts bytes, without an allocator: leave out --set pool={changes['pool']}.")
    scenario = _scenario(trace, node, batch, {**given, "pool": _POOL, "allocator": None}, changes)
    check_searched(scenario.policies)
    if output is not None:
        SEARCH_FOLDER.check(output)
    with progress(quiet) as say:
        result = [
            search_placement(
                scenario.trace,
                scenario.node,
                policy,
                budget=scenario.budget,
                seed=scenario.seed,
                alignment=scenario.alignment,
                epoch=scenario.epoch,
                progress=say,
            )
            for policy in scenario.policies
        ]
    if output is not None:
        write_searches(result, output, about={"simgpu": __version__})
    if as_json:
        document = searches_document(result, {"simgpu": __version__})
        clocks = {"wall_clock": [asdict(each.wall_clock) for each in result]}
        click.echo(json.dumps({**document, **clocks}, indent=2, allow_nan=False))
    else:
        _show(Screen(), scenario, result)
        if output is not None:
            click.echo(f"\nwritten to {output}")
    _end(result)


def _scenario(
    trace: str, node: str | None, batch: int | None, given: Mapping[str, object], settings: Mapping[str, object]
) -> Scenario:
    """Loads the scenario that the arguments describe, at the requested batch size."""
    if trace.startswith(ZOO):
        if batch is None and "trace.batch" not in settings:
            raise click.UsageError(f"Missing option '--batch': {ZOO}NETWORK needs a batch size.")
        return scenario_of(trace, node, given, settings, batch=batch)
    scenario = scenario_of(trace, node, given, settings)
    if is_scenario(trace) and scenario.data_parallel is not None:
        remedy = "leave data_parallel out, and give one GPU's share with --batch"
        raise click.UsageError(f"search supports one GPU, but {trace} trains on several: {remedy}.")
    if batch is None:
        return scenario
    return scenario.with_trace(task_graph(scenario.trace, scenario.node).at_batch(batch).trace)


def _end(searches: Sequence[Search]) -> None:
    """Reports searches whose placement does not fit; exits with 3 when none fits."""
    failed = [each for each in searches if not each.fits]
    for each in failed:
        message = f"{each.label}: {each.outcome}"
        if len(failed) == len(searches):
            show_error(wrapped(message))
        else:
            click.echo(f"\n{wrapped(message, before=0)}", err=True)
    if searches and len(failed) == len(searches):
        sys.exit(OUT_OF_MEMORY)


# --- as tables ----------------------------------------------------------------------------------------------


def _show(screen: Screen, scenario: Scenario, searches: Sequence[Search]) -> None:
    trace, node = scenario.trace.info, scenario.node
    budget = scenario.budget or (searches[0].budget if searches else node.budget)
    screen.print(Text(scenario.name, style="bold"))
    lines = [
        ("network", f"{scenario.trace.name or trace.model}, batch {trace.batch}"),
        ("origin", trace.provenance),
        ("node", f"{node.name}: {node.gpu.name}, {budget_text(budget)}"),
    ]
    screen.print(facts(lines))
    for each in searches:
        screen.print()
        screen.print(Text(each.label, style="bold"))
        screen.print(indented(facts(each.facts())))
        if rows := each.iteration_rows():
            screen.print()
            screen.print(indented(table(("iteration", "worst", "mean", "best", "share fitting"), rows)))
        _show_placement(screen, each)
        if each.notes:
            screen.print()
            screen.print(indented(Text("\n".join(each.notes))))


def _show_placement(screen: Screen, result: Search) -> None:
    """Prints the actions on feature maps, and the feature maps with the most overhead."""
    if not result.maps:
        return
    screen.print()
    screen.print(indented(table(("action", "feature maps", "size", "overhead"), result.action_rows())))
    moved = sorted(
        (number for number, each in enumerate(result.maps) if each.action != "keep"),
        key=lambda number: (-result.maps[number].overhead_ns, number),
    )
    if not moved:
        return
    shown = sorted(moved[:_ROWS])
    headings = ("feature map", "size", "action", "lookahead", "evicted", "restored", "overhead")
    screen.print()
    screen.print(indented(table(headings, [_row(result.maps[n]) for n in shown], left=(0, 2))))
    if len(shown) < len(moved):
        screen.print(
            indented(
                Text(f"showing the {len(shown)} costliest of {len(moved)} non-resident feature maps; -o writes all")
            )
        )


def _row(each: PlacedMap) -> tuple[str, ...]:
    times = ("-" if ns is None else format_time(ns) for ns in (each.offloaded_ns, each.prefetched_ns))
    ahead = "-" if each.prefetch_distance is None else str(each.prefetch_distance)
    return (each.name, format_bytes(each.bytes), each.action, ahead, *times, format_time(each.overhead_ns))
