"""The scenario that a command runs: by its name or file, or as a trace and a node given by options."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from simgpu.cli.screen import quiet_option
from simgpu.cli.settings import parse_settings
from simgpu.cli.suggestions import ZOO, nodes, policies, scenario_keys, scenarios, traces
from simgpu.errors import InputError, Problem
from simgpu.experiments.compare import DEFAULT_POLICIES
from simgpu.experiments.scenarios.load import load_scenario, make_scenario
from simgpu.experiments.scenarios.model import Scenario
from simgpu.io.shipped import shipped_names
from simgpu.policies.registry import parse_policy

#: The name, instead of a file's, in problems of a scenario that is given by options.
COMMAND_LINE = "command line"
_OPTIONS = {"trace": "--trace", "node": "--node", "policies": "--policy", "budget": "--budget (--memory)"}
_OPTIONS_OF_TRACE = {"trace": "TRACE", "node": "--node", "policies": "--policy", "budget": "--budget", "seed": "--seed"}


@dataclass(frozen=True)
class ScenarioChoice:
    """The command-line arguments that select a scenario, unparsed.

    trace, node, policies, memory: options that describe a scenario without naming one; None and () if not given.
    """

    scenario: str | None
    trace: str | None
    node: str | None
    policies: tuple[str, ...]
    memory: str | None
    settings: tuple[str, ...]

    def load(self) -> Scenario:
        """Loads the scenario.

        Raises `InputError` for an invalid scenario, `click.UsageError` for conflicting or missing options.
        """
        overrides = parse_settings(self.settings)
        if self.scenario is not None:
            self._refuse_options()
            return load_scenario(self.scenario, overrides)
        if self.trace is None and self.node is None:
            raise click.UsageError("Missing argument 'SCENARIO': give a scenario, or --trace and --node.")
        if self.trace is None or self.node is None:
            given, missing = ("--node", "--trace") if self.trace is None else ("--trace", "--node")
            raise click.UsageError(f"Missing option '{missing}': {given} needs it.")
        try:
            return make_scenario(self._values(), COMMAND_LINE, overrides)
        except InputError as error:
            raise InputError(as_option(problem, _OPTIONS) for problem in error.problems) from None

    def _refuse_options(self) -> None:
        for option, value in (("--trace", self.trace), ("--node", self.node)):
            if value is not None:
                remedy = f"leave out one of them, or change the scenario with --set {option[2:]}={value}"
                raise click.UsageError(f"{option} replaces SCENARIO, but {self.scenario} is given too: {remedy}.")
        for option, given, instead in (
            ("--policy", self.policies, "policies=NAME"),
            ("--budget (--memory)", self.memory is not None, f"budget={self.memory}"),
        ):
            if given:
                raise click.UsageError(
                    f"{option} needs --trace and --node; for scenario {self.scenario} write --set {instead}."
                )

    def _values(self) -> dict[str, object]:
        return {
            "name": f"{Path(self.trace or '').name} on {Path(self.node or '').stem}",
            "description": "given on the command line",
            "trace": self.trace,
            "node": self.node,
            "policies": [parse_policy(text) for text in self.policies] or list(DEFAULT_POLICIES),
            **({} if self.memory is None else {"budget": self.memory}),
        }


class _OptionByTwoNames(click.Option):
    """An option of two names; the help shows only the first."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        return f"{self.opts[0]} {self.metavar}", self.help or ""


def size_option(name: str, other: str, *, help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator that adds a memory-size option with two names; the parameter is `name` without its dashes."""
    return click.option(name, other, name.lstrip("-"), cls=_OptionByTwoNames, metavar="SIZE", help=help)


def choice_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the arguments that select a scenario, passed as `choice`, and the output options."""

    @functools.wraps(command)
    def with_choice(
        scenario: str | None,
        trace: str | None,
        node: str | None,
        policies: tuple[str, ...],
        memory: str | None,
        settings: tuple[str, ...],
        **rest: Any,
    ) -> Any:
        return command(choice=ScenarioChoice(scenario, trace, node, policies, memory, settings), **rest)

    result: Callable[..., Any] = with_choice
    for option in (
        quiet_option,
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables."),
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="KEY=VALUE",
            shell_complete=scenario_keys,
            help='Change a value in the scenario or its node, e.g. node.gpu.memory="8 GiB". Repeatable.',
        ),
        size_option(
            "--memory",
            "--budget",
            help="With --node: device memory to use, e.g. 10GiB, or 50% of the peak. Default: all.",
        ),
        click.option(
            "--policy",
            "policies",
            multiple=True,
            metavar="POLICY",
            shell_complete=policies,
            help='With --trace: a policy to run, e.g. "vdnn: {mode: conv}". Repeatable. '
            f"Default: {', '.join(map(str, DEFAULT_POLICIES))}.",
        ),
        click.option(
            "--node", metavar="NODE", shell_complete=nodes, help="With --trace: a shipped node or a YAML file."
        ),
        click.option(
            "--trace",
            metavar="TRACE",
            shell_complete=traces,
            help="Instead of SCENARIO: a shipped trace or a trace folder.",
        ),
        click.argument("scenario", required=False, shell_complete=scenarios),
    ):
        result = option(result)
    return result


def is_scenario(what: str) -> bool:
    """Whether a name or path is a scenario. A name of both a shipped trace and a scenario is the trace."""
    if what in shipped_names("traces") or Path(what).is_dir():
        return False
    return what.endswith((".yaml", ".yml")) or what in shipped_names("scenarios")


def scenario_of(
    what: str,
    node: str | None,
    given: Mapping[str, object],
    settings: Mapping[str, object],
    *,
    batch: int | None = None,
) -> Scenario:
    """Loads a scenario, or builds one from a trace or zoo:NETWORK on a node.

    given: values of options, by key. settings: values of --set, by key; they take precedence. batch: batch size, in
    samples, of a zoo network. Raises `InputError` for invalid values, `click.UsageError` for conflicting options.
    """
    if is_scenario(what):
        if node is not None:
            remedy = f"change the node of scenario {what} with --set node={node}"
            raise click.UsageError(f"--node applies only to a trace or {ZOO}NETWORK: {remedy}.")
        return load_scenario(what, {**given, **settings})
    if node is None and "node" not in settings:
        raise click.UsageError("Missing option '--node': a trace needs a node to run on.")
    network = what.removeprefix(ZOO)
    values: dict[str, object] = {
        "name": network if network != what else Path(what).name,
        "trace": {"zoo": network, "batch": batch} if network != what else what,
        "node": node,
        "policies": list(DEFAULT_POLICIES),
        **given,
    }
    try:
        return make_scenario(values, COMMAND_LINE, settings)
    except InputError as error:
        named = (replace(problem, place=problem.place.removesuffix(".zoo")) for problem in error.problems)
        raise InputError(as_option(problem, _OPTIONS_OF_TRACE) for problem in named) from None


def as_option(problem: Problem, options: Mapping[str, str]) -> Problem:
    """A scenario's problem, placed at the command-line option that caused it. options: scenario key to option."""
    key = re.match(r"\w*", problem.place)
    if problem.file != COMMAND_LINE or key is None or key.group() not in options:
        return problem
    inside = re.sub(r"^\[\d+\]\.?", " ", problem.place[key.end() :]).rstrip()
    return replace(problem, file="", place=f"{options[key.group()]}{inside}")
