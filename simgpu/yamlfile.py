"""Reading a YAML file that must be one mapping, and saying exactly what is wrong with it otherwise.

Lives here: its syntax, its schema version and the line of every key. Does not live here: what keys
mean (`simgpu.filemodel` and the models that use it). Imports yaml, so it is imported only when a file is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from simgpu.errors import InputError, Problem
from simgpu.textfile import read_text


@dataclass(frozen=True)
class YamlMapping:
    """A YAML file's content: its path as text, its values, and the line on which each dotted place starts."""

    file: str
    values: Mapping[str, Any]
    lines: Mapping[str, int]

    def place(self, dotted: str) -> str:
        """A place for a message: the line of the nearest enclosing key, and the dotted path.

        >>> YamlMapping("node.yaml", {}, {"gpu": 3}).place("gpu.memory")
        'line 3, gpu.memory'
        """
        known = dotted
        while known and known not in self.lines:
            known = known[: max(known.rfind("."), known.rfind("["), 0)]
        return f"line {self.lines[known]}, {dotted}" if known else dotted


def read_yaml_mapping(path: str | Path, schema: str) -> YamlMapping:
    """The mapping in a YAML file whose top-level key `schema` must be `schema`, such as ``simgpu.node/1``.

    The returned values still contain `schema`. Raises `InputError` for a missing, empty or binary file, wrong
    syntax (with line and column), keys given twice, anything but a mapping, and a wrong schema.
    """
    file = str(path)
    text = read_text(path, "a YAML text file", if_empty="write the file, starting with its 'schema:' line")
    try:
        document = _parse(text, file, schema)
    except RecursionError:
        raise InputError.single(file, "", "is nested too deeply", "write it flatter") from None
    _check_schema(document, schema)
    return document


def _parse(text: str, file: str, schema: str) -> YamlMapping:
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            remedy = f"write 'key: value' lines, starting with 'schema: {schema}'"
            raise InputError.single(file, "", "is not a mapping of keys to values", remedy)
        lines: dict[str, int] = {}
        problems = [Problem(file, place, what, remedy) for place, what, remedy in _walk(root, "", lines, set())]
        if problems:
            raise InputError(problems)
        values: dict[str, Any] = loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        raise InputError([_syntax_problem(text, file, error)]) from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError.single(file, "", f"is not YAML: {error}", "put quotes around texts") from None
    finally:
        loader.dispose()
    return YamlMapping(file, values, lines)


def _syntax_problem(text: str, file: str, error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return Problem(file, "", f"YAML syntax: {error.problem}", "check indentation, colons and quotes")
    place = f"line {mark.line + 1}, column {mark.column + 1}"
    line = text.split("\n")[mark.line]
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return Problem(file, place, "indented with a tab", "YAML takes spaces only: write two spaces for each tab")
    what = " ".join(part for part in (error.context, error.problem) if part)
    return Problem(file, place, f"YAML syntax: {what}", "check indentation, colons and quotes near there")


def _walk(node: yaml.Node, path: str, lines: dict[str, int], seen: set[int]) -> Iterator[tuple[str, str, str]]:
    """Notes the line of every key and item, and yields keys that are given twice or are not text."""
    if id(node) in seen:  # an alias: its lines are those of the anchor, and it may contain itself
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[f"{path}[{index}]"] = item.start_mark.line + 1
            yield from _walk(item, f"{path}[{index}]", lines, seen)
    elif isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            here = f"{path}.{key.value}" if path else str(key.value)
            if not isinstance(key, yaml.ScalarNode) or not key.tag.endswith((":str", ":merge")):
                yield (
                    f"line {line}" + (f", {path}" if path else ""),
                    f"the key {key.value!r} is not a text",
                    "put quotes around it",
                )
                continue
            if key.value in first:
                yield (
                    f"line {line}, {here}",
                    f"given twice, first on line {first[key.value]}",
                    "keep one of them",
                )
            first.setdefault(key.value, line)
            lines[here] = line
            yield from _walk(value, here, lines, seen)


def _check_schema(document: YamlMapping, schema: str) -> None:
    given = document.values.get("schema")
    if given == schema:
        return
    if given is None:
        raise InputError.single(document.file, "", "has no 'schema' key", f"add the line 'schema: {schema}'")
    kind, _, version = schema.rpartition("/")
    what = f"{given!r} is not the schema expected here"
    if isinstance(given, str) and given.rpartition("/")[0] == kind:
        what = f"{given!r} is another version; this simgpu reads version {version}"
    raise InputError.single(document.file, document.place("schema"), what, f"write 'schema: {schema}'")
