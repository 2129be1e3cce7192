"""Tables of a run for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from simgpu.cli.screen import WIDTH, Screen, facts, indented, table
from simgpu.experiments.measures import OOM, groups
from simgpu.simulation.notes import allocator_text, context_text
from simgpu.simulation.plain_peak import budget_text
from simgpu.trace.epochs import epochs_of

if TYPE_CHECKING:
    from simgpu.experiments.compare import Comparison, PolicyRun
    from simgpu.experiments.scenarios.model import Scenario

_NAMES = 21  # width of the names column, with its gap
_CELL = 13  # width of a number with its percentage
_GAP = 2
_SHORT = {"out of memory": OOM, "refused": "refused", "error": "error"}


def show_header(screen: Screen, scenario: Scenario, comparison: Comparison) -> None:
    """Prints the scenario, its node, and the settings of the run."""
    screen.print(Text(scenario.name, style="bold"))
    screen.print(facts([*scenario.facts(), ("run", _run_line(scenario, comparison))]))
    screen.print()


def show_comparison(screen: Screen, comparison: Comparison) -> None:
    """Prints one line per policy."""
    rows = []
    for run, (label, time, *numbers, _) in zip(comparison, comparison.rows(), strict=True):
        unsteady = run.result is not None and run.result.steady is False
        rows.append((f"{label} *" if unsteady else label, time if run.result else _SHORT[run.failure], *numbers))
    for index, line in enumerate(_lines_of_rows(comparison.headings[:-1], rows)):
        screen.print(Text(line, style="" if index else "bold"))
    if any(result.steady is False for result in comparison.results.values()):
        screen.print("* unsteady: the last two iterations differ; run more iterations")
    if comparison.bound_note:
        screen.print()
        screen.print(Text(comparison.bound_note))
    _show_notes(screen, comparison)


def show_details(screen: Screen, comparison: Comparison) -> None:
    """Prints one column per policy: speed, time breakdown, traffic and memory; in groups that fit the width."""
    if not comparison.results:
        return
    for index, runs in enumerate(_side_by_side(comparison.runs)):
        if index:
            screen.print()
        rows = [(name, *texts) for name, texts in _lines(runs)]
        screen.print(table(("", *map(_heading, runs)), rows))
    for note in dict.fromkeys(result.energy_note for result in comparison.results.values() if result.energy_note):
        screen.print()
        screen.print(facts([("energy, power", note)]))
    _show_notes(screen, comparison)


def _lines_of_rows(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table: names left-aligned, numbers right-aligned; a name that is too wide gets its own line."""
    widths = [max(map(len, column)) + _GAP for column in zip(headings, *rows, strict=True)]
    free = WIDTH - sum(widths[1:])
    width = max(len(row[0]) for row in (headings, *rows) if len(row[0]) <= free)
    for name, *numbers in (headings, *rows):
        if len(name) > width:
            yield name
        first = "" if len(name) > width else name
        yield first.ljust(width) + "".join(text.rjust(wide) for text, wide in zip(numbers, widths[1:], strict=True))


def _show_notes(screen: Screen, comparison: Comparison) -> None:
    """Prints the policies' notes on their runs."""
    show_notes(screen, ((label, note) for label, result in comparison.results.items() for note in result.notes))


def show_notes(screen: Screen, notes: Iterable[tuple[str, str]]) -> None:
    """Prints each note once, with all policies that have it. notes: pairs of a policy's label and its note."""
    policies: dict[str, dict[str, None]] = {}
    for label, note in notes:
        policies.setdefault(note, {})[label] = None
    if not policies:
        return
    screen.print()
    if max(len(label) for labels in policies.values() for label in labels) < screen.width // 2:
        screen.print(facts((",\n".join(labels), note) for note, labels in policies.items()))
        return
    for note, labels in policies.items():  # long labels would leave no space next to them
        screen.print(Text(", ".join(labels), style="dim"))
        screen.print(indented(Text(note)))


def _run_line(scenario: Scenario, comparison: Comparison) -> str:
    results = comparison.results.values()
    pools = sorted({result.pool for result in results})
    budget = f"budget {budget_text(scenario.budget)}" if scenario.budget is not None else ""
    count = scenario.iterations
    parts = [
        f"{count} iterations, the last one reported" if count > 1 else "1 iteration",
        _steadiness([result.steady for result in results]),
        budget,
        " and ".join(map(allocator_text, pools)),
        *dict.fromkeys(context_text(result.metrics.by_key) for result in results),
        f"seed {scenario.seed}",
        f"epoch {scenario.epoch}" if epochs_of(scenario.trace) else "",
    ]
    return "; ".join(part for part in parts if part)


def _steadiness(steady: Sequence[bool | None]) -> str:
    if not steady:
        return ""
    if None in steady:
        return "one iteration: steadiness unknown"
    if all(steady):
        return "steady"
    return "some runs UNSTEADY, see below" if any(steady) else "UNSTEADY: iterations still differ"


def _heading(run: PolicyRun) -> str:
    """The policy's name, with its parameters on a second line."""
    name, _, parameters = run.label.partition("(")
    return f"{name}\n{parameters.removesuffix(')')}" if parameters else name


def _side_by_side(runs: Sequence[PolicyRun]) -> Iterator[tuple[PolicyRun, ...]]:
    """Splits the runs into groups that fit the width."""
    group: list[PolicyRun] = []
    width = _NAMES
    for run in runs:
        needed = max(_CELL, *map(len, _heading(run).splitlines()))
        if group and width + needed > WIDTH:
            yield tuple(group)
            group, width = [], _NAMES
        group.append(run)
        width += needed + _GAP
    if group:
        yield tuple(group)


def _lines(runs: Sequence[PolicyRun]) -> Iterator[tuple[str, Sequence[str]]]:
    """Names and cells of the measures, with a blank line between groups."""
    for number, group in enumerate(groups([run.to_dict() for run in runs])):
        if number:
            yield "", [""] * len(runs)
        for line in group.lines:
            yield f"  {line.name}" if line.part else line.name, line.cells
