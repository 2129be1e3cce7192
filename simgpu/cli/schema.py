"""``simgpu list schema``: print the JSON Schema of simgpu's files, for editors and other programs."""

from __future__ import annotations

import json
from typing import Any, Literal, get_args

import click

Kind = Literal["scenario", "study", "node", "plan"]


@click.command()
@click.argument("kind", type=click.Choice(get_args(Kind)), default="scenario")
def schema(kind: Kind) -> None:
    """Print the JSON Schema of scenario files (the default), study files, node files or plans.

    Editors use it to complete keys and mark mistakes while you type. It includes the policies of other packages that
    are installed.

    \b
    simgpu list schema scenario > scenario.schema.json
    # then, in the first line of your YAML file:
    # yaml-language-server: $schema=scenario.schema.json
    """
    click.echo(json.dumps(json_schema(kind), indent=2))


def json_schema(kind: Kind) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of one kind of file, as plain data."""
    from simgpu.experiments.scenarios.model import ScenarioFile
    from simgpu.experiments.scenarios.study import StudyFile
    from simgpu.hardware.nodes import NodeFile
    from simgpu.io.schema import FileModel
    from simgpu.torch.plan import Plan

    models: dict[str, type[FileModel]] = {"scenario": ScenarioFile, "study": StudyFile, "node": NodeFile, "plan": Plan}
    model = models[kind]
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, **_without_program_defaults(model.model_json_schema(by_alias=True, mode="validation"))}


def _without_program_defaults(schema: Any) -> Any:
    """Removes the defaults of quantities, which are numbers in the program but strings in files."""
    if isinstance(schema, list):
        return [_without_program_defaults(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    number = isinstance(schema.get("default"), int) and schema.get("type") == "string"
    return {key: _without_program_defaults(value) for key, value in schema.items() if not (number and key == "default")}
