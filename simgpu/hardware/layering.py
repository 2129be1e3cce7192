"""Merges a node file with its base, recursively."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simgpu.errors import InputError, Problem
from simgpu.io.shipped import find
from simgpu.io.yaml_files import YamlMapping, read_yaml_mapping

#: Keys that a file does not inherit from its base.
OWN = ("schema", "name", "description", "base")


@dataclass(frozen=True)
class LayeredFile:
    """A node file merged with its bases.

    files: the requested file, then its bases in order.
    values: the merged values.
    origins: the file that each dotted key comes from.
    """

    files: tuple[YamlMapping, ...]
    values: Mapping[str, Any]
    origins: Mapping[str, YamlMapping]

    def where(self, place: str) -> tuple[str, str]:
        """Returns file and place (with line) for a message about a dotted key, or about its nearest known parent."""
        known = place
        while known and known not in self.origins:
            known = known[: max(known.rfind("."), known.rfind("["), 0)]
        document = self.origins[known] if known else self.files[0]
        return document.file, document.place(place)

    def source_problems(self) -> list[Problem]:
        """Returns the problems of sources whose keys are neither in their file nor in its bases."""
        problems = []
        for number, document in enumerate(self.files):
            known = {place for other in self.files[number:] for place in other.lines}
            sources = document.values.get("sources")
            remedy = "name a key of this file, such as 'gpu.memory'"
            problems += [
                Problem(document.file, document.place(f"sources.{key}"), f"{key!r} is not in this file", remedy)
                for key in (sources if isinstance(sources, dict) else ())
                if key not in known
            ]
        return problems


def read_layered(path: Path, schema: str) -> LayeredFile:
    """Reads the YAML mapping at `path` and merges it with its `base`, a shipped name or a path from the file's folder.

    Mappings are merged key by key; everything else is replaced. Sources are inherited from the base, except those of
    values that the file overrides. Name and description are not inherited.

    Raises `InputError` for a file that cannot be read, a base that does not exist, and circular bases.
    """
    files = tuple(_chain(path, schema))
    values: dict[str, Any] = {}
    origins: dict[str, YamlMapping] = {}
    for document in reversed(files):
        for key in OWN:
            values.pop(key, None)
            origins.pop(key, None)
        _drop_sources(values, document)
        _lay(values, copy.deepcopy(dict(document.values)), "", document, origins)
    return LayeredFile(files, values, origins)


def _chain(path: Path, schema: str) -> Iterator[YamlMapping]:
    """Yields the file, its base, the base of the base and so on."""
    passed: list[Path] = []
    while True:
        document = read_yaml_mapping(path, schema)
        yield document
        passed.append(path.resolve())
        base = document.values.get("base")
        if not isinstance(base, str) or not base:
            return  # no base, or an invalid one, which validation reports
        place = document.place("base")
        try:
            path = find("configs", base, path.parent)
        except InputError as error:
            raise InputError([_at(document.file, place, problem) for problem in error.problems]) from None
        if path.resolve() in passed:
            circle = " -> ".join(file.name for file in [*passed[passed.index(path.resolve()) :], path])
            remedy = "remove the base of one of them"
            raise InputError.single(document.file, place, f"circular bases: {circle}", remedy)


def _at(file: str, place: str, problem: Problem) -> Problem:
    """Returns a problem with finding the base, located where the base is named."""
    what = f"{problem.what}: {problem.file}" if problem.file else problem.what
    return Problem(file, place, what, problem.remedy)


def _drop_sources(values: dict[str, Any], document: YamlMapping) -> None:
    """Drops the sources of values that the document overrides, or removes with their section."""
    sources = values.get("sources")
    if isinstance(sources, dict):
        given = document.lines
        replaced = tuple(f"{key}." for key in _places_of_no_mapping(document.values))
        for key in [key for key in sources if key in given or key.partition("[")[0] in given]:
            del sources[key]
        for key in [key for key in sources if key.startswith(replaced)]:
            del sources[key]


def _places_of_no_mapping(values: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yields the dotted keys of values other than mappings; they replace any section of the base."""
    for key, value in values.items():
        here = f"{path}.{key}" if path else key
        if isinstance(value, dict):
            yield from _places_of_no_mapping(value, here)
        else:
            yield here


def _lay(
    under: dict[str, Any], over: dict[str, Any], path: str, document: YamlMapping, origins: dict[str, YamlMapping]
) -> None:
    """Merges the values `over` of a document into `under`, in place."""
    for key, value in over.items():
        here = f"{path}.{key}" if path else key
        if isinstance(value, dict) and isinstance(under.get(key), dict):
            origins[here] = document
            _lay(under[key], value, here, document, origins)
            continue
        under[key] = value
        inside = (f"{here}.", f"{here}[")
        for place in [place for place in origins if place.startswith(inside)]:
            del origins[place]
        origins.update({place: document for place in document.lines if place == here or place.startswith(inside)})
