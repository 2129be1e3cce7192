"""``simgpu schema``: JSON Schema for editors."""

from __future__ import annotations

import json
from typing import Any, Literal

import click


@click.command()
@click.argument("kind", type=click.Choice(["scenario", "node"]), default="scenario")
def schema(kind: Literal["scenario", "node"]) -> None:
    """Print the JSON Schema of scenario files (the default) or of node files.

    With it, an editor completes keys and marks mistakes while you type. Policies of other packages are included
    when those are installed.

    \b
    simgpu schema scenario > scenario.schema.json
    # then, in the first line of your YAML file:
    # yaml-language-server: $schema=scenario.schema.json
    """
    click.echo(json.dumps(json_schema(kind), indent=2))


def json_schema(kind: Literal["scenario", "node"]) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a kind of file, as plain data."""
    if kind == "node":
        from simgpu.hardware.nodes import NodeFile as Model
    else:
        from simgpu.scenario.model import ScenarioFile as Model  # type: ignore[assignment]
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, **Model.model_json_schema(by_alias=True, mode="validation")}
