"""Finds scenarios and studies by name: files of one folder, distinguished by their schema."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import MappingProxyType

from simgpu.errors import InputError
from simgpu.experiments.scenarios.model import SCHEMA
from simgpu.io.shipped import find, shipped_names
from simgpu.io.yaml_files import YamlMapping, read_yaml_mapping

#: The schema of a study's file; that of a scenario's is `SCHEMA`.
STUDY_SCHEMA = "simgpu.study/2"
#: The name of each schema's files in messages, and the command that runs them.
_WORDS = {SCHEMA: ("a scenario", "run"), STUDY_SCHEMA: ("a study", "study")}


def read_file(name_or_path: str | Path, schema: str) -> YamlMapping:
    """Read a shipped or own file of a schema. The `InputError` for a file of the other kind names its command."""
    path = find("scenarios", name_or_path)
    try:
        return read_yaml_mapping(path, schema)
    except InputError:
        for other, (word, command) in _WORDS.items():
            if other != schema and _is_of(path, other):
                what = f"is {word}, not {_WORDS[schema][0]}"
                raise InputError.single(path, "schema", what, f"use: simgpu {command} {name_or_path}") from None
        raise


def _is_of(path: Path, schema: str) -> bool:
    try:
        read_yaml_mapping(path, schema)
    except InputError:
        return False
    return True


def shipped_scenarios() -> Mapping[str, str]:
    """Names and descriptions of the shipped scenarios.

    >>> "quickstart" in shipped_scenarios(), "cswap-6a" in shipped_scenarios()
    (True, False)
    """
    return _shipped(SCHEMA)


def shipped_studies() -> Mapping[str, str]:
    """Names and descriptions of the shipped studies.

    >>> "cswap-6a" in shipped_studies()
    True
    """
    return _shipped(STUDY_SCHEMA)


@cache
def _shipped(schema: str) -> Mapping[str, str]:
    results = {}
    for name in shipped_names("scenarios"):
        with suppress(InputError):
            file = read_yaml_mapping(find("scenarios", name), schema)
            results[name] = str(file.values.get("description", ""))
    return MappingProxyType(results)
