"""``simgpu scenarios``: the studies that ship with simgpu."""

from __future__ import annotations

import click

from simgpu.cli.screen import Screen, facts
from simgpu.scenario.model import SCHEMA
from simgpu.shipped import find, shipped_names
from simgpu.yamlfile import read_yaml_mapping


@click.command()
def scenarios() -> None:
    """List the scenarios that ship with simgpu. Run one with: simgpu run NAME."""
    files = {name: read_yaml_mapping(find("scenarios", name), SCHEMA) for name in shipped_names("scenarios")}
    Screen().print(facts((name, str(file.values.get("description", ""))) for name, file in files.items()))
