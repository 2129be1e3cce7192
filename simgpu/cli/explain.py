"""``simgpu explain``: explain why a scenario's policies are slow or do not fit, and what would help."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import click
from rich.text import Text

from simgpu.cli.choice import ScenarioChoice, choice_options
from simgpu.cli.group import OUT_OF_MEMORY
from simgpu.cli.run_tables import show_header
from simgpu.cli.screen import Screen, facts, indented, progress, table
from simgpu.cli.settings import parse_size
from simgpu.errors import InputError
from simgpu.experiments.compare import Comparison, PolicyRun, compare
from simgpu.experiments.scenarios.model import Scenario
from simgpu.explain.explanation import (
    PATH_HEADINGS,
    Explanation,
    explain_result,
    loss_lines,
)
from simgpu.explain.remedies import REMEDY_HEADINGS, Remedies, remedy_rows, what_helps
from simgpu.explain.smallest_budget import SmallestBudget, smallest_budget
from simgpu.explain.what_if import ANSWER_HEADINGS, Answer, answer_dict, answer_rows, what_if
from simgpu.version import __version__

EXPLANATION_SCHEMA = "simgpu.explanation/1"


@click.command()
@choice_options
@click.option(
    "--top", metavar="N", type=click.IntRange(1), default=5, show_default=True, help="Number of losses to list."
)
@click.option(
    "--more-memory",
    default="2 GiB",
    show_default=True,
    metavar="SIZE",
    help="Extra device memory in the more-memory what-if run.",
)
@click.option(
    "--what-if/--no-what-if", default=True, show_default=True, help="Also run with one thing changed at a time."
)
def explain(choice: ScenarioChoice, as_json: bool, quiet: bool, top: int, more_memory: str, what_if: bool) -> None:
    """Explain why the policies of SCENARIO are slow or do not fit.

    Attributes all time in which compute stalled, recomputed or ran a codec to a tensor, an engine and a decision of
    the policy. Shows the critical path. Repeats the run with one improvement at a time: a link twice as fast, more
    memory, a second copy engine, codecs that take no time.

    For a policy that runs out of memory, shows the smallest budget in which it fits, the tensors that limit the
    budget, and what other settings of the allocator, a smaller batch and recomputation would do to the peak. Policies
    with unlimited memory are omitted. Instead of SCENARIO, --trace and --node select what to run.

    Exit code 3: every policy ran out of memory.

    \b
    simgpu explain quickstart
    simgpu explain quickstart --set "policies=[home]" --top 10
    simgpu explain vgg16-v100 --set "policies=[vdnn]" --more-memory "4 GiB"
    simgpu explain --trace vgg16-b128-v100 --node v100 --memory 8GiB --no-what-if
    """
    more = parse_size(more_memory, "--more-memory")
    loaded = choice.load()
    with progress(quiet) as say:
        comparison = compare(loaded, progress=say)
        explained = [_Explained(loaded, run, more if what_if else None, say) for run in comparison if _limited(run)]
    if as_json:
        about = {"simgpu": __version__, "scenario": loaded.name, "description": loaded.description}
        document = {"schema": EXPLANATION_SCHEMA, **about, **comparison.about()}
        click.echo(json.dumps({**document, "explanations": [each.to_dict() for each in explained]}, indent=2))
    else:
        _show(loaded, comparison, explained, top)
    if explained and all(each.explanation is None and not each.run.refused for each in explained):
        sys.exit(OUT_OF_MEMORY)


def _limited(run: PolicyRun) -> bool:
    return run.result is None or not run.result.program.unlimited_memory


class _Explained:
    """The explanation of one policy's run."""

    def __init__(self, scenario: Scenario, run: PolicyRun, more: int | None, say: Callable[[str], None]) -> None:
        self.run = run
        self.explanation: Explanation | None = explain_result(run.result) if run.result else None
        self.answers: tuple[Answer, ...] = ()
        self.remedies = Remedies()
        self.smallest: SmallestBudget | None = None
        self.no_budget = ""
        arguments = (scenario.trace, scenario.node, run.policy, scenario.config)
        how: dict[str, Any] = {"parameters": dict(run.parameters), "progress": say}
        if run.result is not None and more is not None:
            self.answers = what_if(*arguments, **how, more_memory=more)
        elif run.result is None and not run.refused:
            self._look_for_budget(arguments, how)
            if more is not None and scenario.data_parallel is None:
                self.remedies = what_helps(*arguments, **how)

    def _look_for_budget(self, arguments: tuple[Any, ...], how: dict[str, Any]) -> None:
        try:
            self.smallest = smallest_budget(*arguments, **how)
        except InputError as error:
            self.no_budget = str(error)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        result: dict[str, Any] = self.explanation.to_dict() if self.explanation else {"policy": self.run.label}
        if self.answers:
            result["what_if"] = [answer_dict(answer) for answer in self.answers]
        if self.explanation is None:
            result["failure"] = {"kind": self.run.failure, "message": str(self.run.outcome)}
        if self.remedies:
            result["what_helps"] = [each.to_dict() for each in self.remedies]
        if self.no_budget:
            result["smallest_budget"] = {"bytes": None, "message": self.no_budget}
        if self.smallest is not None:
            pinned = [
                {"block": name, "bytes": size, "what": self.smallest.what(name)}
                for name, size in self.smallest.pinned_by
            ]
            below = {"below_bytes": self.smallest.below, "message": str(self.smallest.error or "")}
            time = {"iteration_ns": self.smallest.result.iteration_ns}
            result["smallest_budget"] = {"bytes": self.smallest.budget, **time, **below, "pinned_by": pinned}
        return result


def _show(scenario: Scenario, comparison: Comparison, explained: list[_Explained], top: int) -> None:
    screen = Screen()
    show_header(screen, scenario, comparison)
    if not explained:
        screen.print(Text("nothing to explain: all policies have unlimited memory; add a policy with limited memory"))
    for number, each in enumerate(explained):
        if number:
            screen.print()
        if each.explanation is not None:
            _show_run(screen, each.explanation, each.answers, top)
        else:
            screen.print(Text(f"{each.run.label}: {each.run.failure}", style="bold"))
            if each.smallest is not None:
                screen.print(indented(facts(each.smallest.facts())))
            elif each.no_budget:
                screen.print(indented(facts([("no sufficient budget", each.no_budget)])))
            else:
                screen.print(indented(Text(str(each.run.outcome))))
            if each.remedies:
                screen.print()
                screen.print(table(REMEDY_HEADINGS, remedy_rows(each.remedies), left=(0, 4), unbroken=(0, 1, 2, 3)))


def _show_run(screen: Screen, explanation: Explanation, answers: tuple[Answer, ...], top: int) -> None:
    screen.print(Text(explanation.headline, style="bold"))
    for note in explanation.result.notes:
        screen.print(indented(Text(note)))
    if explanation.losses:
        for line in filter(None, (explanation.by_engine, explanation.by_layer)):
            screen.print(Text(line))
        screen.print()
        screen.print(table(("lost", "share", "cause"), _loss_rows(explanation, top), left=(2,), unbroken=(0, 1)))
    screen.print()
    screen.print(Text("critical path", style="bold"))
    screen.print(table(PATH_HEADINGS, explanation.path_rows(), left=(3, 4), unbroken=range(5)))
    if answers:
        screen.print()
        screen.print(table(ANSWER_HEADINGS, answer_rows(answers), left=(0, 3), unbroken=(0, 1, 2)))


def _loss_rows(explanation: Explanation, top: int) -> list[tuple[str, str, str]]:
    """The largest losses, with each tensor, decision and reason on its own line."""
    lines = ["\n".join(loss_lines(loss)) for loss in explanation.losses[:top]]
    rows = explanation.loss_rows(top)
    return [(time, share, lines[n] if n < len(lines) else rest) for n, (time, share, rest) in enumerate(rows)]
