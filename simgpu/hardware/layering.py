"""Merging a node file with the file that it is based on, and that one with its own base."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simgpu.errors import InputError, Problem
from simgpu.io.shipped import find
from simgpu.io.yaml_files import YamlMapping, read_yaml_mapping

#: What a file says about itself, and so does not take from its base.
OWN = ("schema", "name", "description", "base")


@dataclass(frozen=True)
class LayeredFile:
    """A node file, the files that it is based on, and their merged values; the requested file is first.

    values: as if all stood in one file. origins: the file that each dotted place of it comes from.
    """

    files: tuple[YamlMapping, ...]
    values: Mapping[str, Any]
    origins: Mapping[str, YamlMapping]

    def where(self, place: str) -> tuple[str, str]:
        """File and place, with its line, for a message about a dotted place; the nearest enclosing one if unknown."""
        known = place
        while known and known not in self.origins:
            known = known[: max(known.rfind("."), known.rfind("["), 0)]
        document = self.origins[known] if known else self.files[0]
        return document.file, document.place(place)

    def source_problems(self) -> list[Problem]:
        """Sources that speak of keys which neither their file nor its bases have."""
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
    """The YAML mapping at `path` laid over its `base`, if it has one: a shipped name, or a path from its folder.

    Mappings are merged key by key, everything else is replaced. A file's sources are its base's, without those of
    values that it gives itself, and with its own. Name and description are not taken from a base.

    Raises `InputError` for a file that cannot be read, a base that is not there, and bases that lead in a circle.
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
    """The file, its base, that one's base and so on."""
    passed: list[Path] = []
    while True:
        document = read_yaml_mapping(path, schema)
        yield document
        passed.append(path.resolve())
        base = document.values.get("base")
        if not isinstance(base, str) or not base:
            return  # none, or none that can be looked for: the model of the file says so
        place = document.place("base")
        try:
            path = find("configs", base, path.parent)
        except InputError as error:
            raise InputError([_at(document.file, place, problem) for problem in error.problems]) from None
        if path.resolve() in passed:
            circle = " -> ".join(file.name for file in [*passed[passed.index(path.resolve()) :], path])
            remedy = "base one of them on none of the others"
            raise InputError.single(document.file, place, f"leads in a circle: {circle}", remedy)


def _at(file: str, place: str, problem: Problem) -> Problem:
    """A problem with finding the base, placed where the base is named."""
    what = f"{problem.what}: {problem.file}" if problem.file else problem.what
    return Problem(file, place, what, problem.remedy)


def _drop_sources(values: dict[str, Any], document: YamlMapping) -> None:
    """Drops the sources of values that the document gives itself, or drops with their section."""
    sources = values.get("sources")
    if isinstance(sources, dict):
        given = document.lines
        replaced = tuple(f"{key}." for key in _places_of_no_mapping(document.values))
        for key in [key for key in sources if key in given or key.partition("[")[0] in given]:
            del sources[key]
        for key in [key for key in sources if key.startswith(replaced)]:
            del sources[key]


def _places_of_no_mapping(values: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Dotted places of the values that are no mappings; what a base has inside them is gone."""
    for key, value in values.items():
        here = f"{path}.{key}" if path else key
        if isinstance(value, dict):
            yield from _places_of_no_mapping(value, here)
        else:
            yield here


def _lay(
    under: dict[str, Any], over: dict[str, Any], path: str, document: YamlMapping, origins: dict[str, YamlMapping]
) -> None:
    """Lays the values of a document over those under it, in place."""
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
