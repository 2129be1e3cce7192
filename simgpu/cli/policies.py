"""``simgpu list policies``: lists each policy's summary, parameters and source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.text import Text

from simgpu.cli import suggestions
from simgpu.cli.screen import Screen, facts, indented
from simgpu.errors import InputError, Problem
from simgpu.policies.registry import describe, policy_names

if TYPE_CHECKING:
    from simgpu.policies.registry import ParameterInfo


@click.command()
@click.argument("policy", required=False, shell_complete=suggestions.policies)
def policies(policy: str | None) -> None:
    """List the memory policies with their parameters and sources, or show only POLICY.

    If a policy of another package cannot be loaded, an error names it at the end and the exit code is 2.

    \b
    simgpu list policies
    simgpu list policies vdnn
    """
    screen = Screen()
    broken: list[Problem] = []
    for index, name in enumerate(policy_names() if policy is None else [policy]):
        try:
            result = describe(name)
        except InputError as error:
            broken += error.problems
            continue
        if index:
            screen.print()
        screen.print(Text(result.name, style="bold"))
        screen.print(indented(Text(result.summary)))
        if result.source:
            screen.print(indented(Text(f"source: {result.source}", style="dim")))
        if result.parameters:
            screen.print(indented(facts((parameter.name, _text(parameter)) for parameter in result.parameters)))
    if broken:
        raise InputError(broken)


def _text(parameter: ParameterInfo) -> str:
    kind = " | ".join(map(str, parameter.choices)) if parameter.choices else parameter.type
    return f"{parameter.description} ({kind}; default {parameter.default})"
