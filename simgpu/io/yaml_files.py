"""Reading a YAML file that must be one mapping, with the line of every key and value for error messages.

Imports yaml, so it is imported only when a file is read. `simgpu.io.schema` checks what the keys mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from simgpu.errors import MIGRATE, InputError, Problem
from simgpu.io.input_files import YAML_LIMIT, read_text

#: Values and keys of a document with all aliases expanded. The largest that ships has 3011.
_NODES = 50_000
#: Lists and mappings within each other, aliases followed.
_DEPTH = 100
#: Line breaks in YAML.
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
#: Characters of a number.
_DIGITS = 100
#: Characters of a document that is kept once it is parsed: nodes and scenarios are read again and again.
_SHORT = 2**16


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


def read_yaml_mapping(path: str | Path, schema: str, upgrade: str = f"rewrite the file: {MIGRATE}") -> YamlMapping:
    """The mapping in a YAML file whose top-level key `schema` must be `schema`, such as ``simgpu.node/1``.

    The returned values still contain `schema`. upgrade: what to do with a file of an older version. Raises
    `InputError` for a file that `simgpu.io.input_files.read_text` refuses, wrong syntax (with line and column), keys
    given twice, anything but a mapping, a wrong schema, and a document above the limits: on bytes, on values after
    aliases are followed, on nesting and on the length of numbers.
    """
    file = str(path)
    text = read_text(path, "a YAML text file", "write the file, starting with its 'schema:' line", YAML_LIMIT)
    document = (_parse_once if len(text) <= _SHORT else _parse)(text, file, schema)
    _check_schema(document, schema, upgrade)
    return replace(document, values=deepcopy(document.values))


def yaml_value(text: str) -> Any:
    """The value of a text that is not a file's, such as one on the command line; None for an empty one.

    Raises `ValueError` where it is not YAML, `InputError` where it is above the limits of `read_yaml_mapping`.

    >>> yaml_value("[1, 8 GiB]"), yaml_value("a")
    ([1, '8 GiB'], 'a')
    """
    loader = _loader(text, "")
    try:
        root = loader.get_single_node()
        return None if root is None else loader.construct_document(root)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    finally:
        loader.dispose()


def _parse(text: str, file: str, schema: str) -> YamlMapping:
    loader = _loader(text, file)
    try:
        root = loader.get_single_node()
        lines: dict[str, int] = {}
        problems = [Problem(file, *result) for result in _walk(root, "", lines, set())] if root is not None else []
        if problems:
            raise InputError(problems)
        values = loader.construct_document(root) if root is not None else None
        if not isinstance(values, dict):
            remedy = f"write 'key: value' lines, starting with 'schema: {schema}'"
            raise InputError.single(file, "", "is not a mapping of keys to values", remedy)
    except _NotAValueError as error:
        what, place = f"is not YAML: {error.problem}", _place(error.problem_mark)
        raise InputError.single(file, place, what, "put quotes around texts") from None
    except yaml.MarkedYAMLError as error:
        raise InputError([_syntax_problem(text, file, error)]) from None
    except yaml.YAMLError as error:
        remedy = "quote strings that contain special characters"
        raise InputError.single(file, "", f"is not valid YAML: {error}", remedy) from None
    finally:
        loader.dispose()
    return YamlMapping(file, values, lines)


_parse_once = lru_cache(maxsize=128)(_parse)


def _loader(text: str, file: str) -> _Loader:
    try:
        return _Loader(text, file)
    except yaml.reader.ReaderError as error:
        place = f"line {text.count(chr(10), 0, error.position) + 1}" if file else ""
        what = f"contains the control character {text[error.position]!r}"
        raise InputError.single(file, place, what, "remove it, or write it as an escape in double quotes") from None


class _Loader(yaml.SafeLoader):
    """Refuses a document above the limits while it is composed, before any of its values are built."""

    def __init__(self, text: str, file: str = "") -> None:
        super().__init__(text)
        self._file = file
        self._nodes = self._depth = self._deepest = 0
        #: Of each finished node its nodes and its levels, by identity; one that is missing is still being composed.
        self._finished: dict[int, tuple[int, int]] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        peek: Callable[[], yaml.Event] = self.peek_event  # its stub has no types
        event = peek()
        before, outer = self._nodes, self._deepest
        self._depth += 1
        if isinstance(event, yaml.AliasEvent):
            node = super().compose_node(parent, index)
            if id(node) not in self._finished:
                what = f"the alias '*{event.anchor}' contains itself"
                raise self._refused(event, what, "write out its content")
            nodes, levels = self._finished[id(node)]
            self._take(event, nodes, self._depth + levels)
        else:
            self._deepest = self._depth
            self._take(event, 1, self._depth)
            node = super().compose_node(parent, index)
            is_number = isinstance(node, yaml.ScalarNode) and node.tag.endswith((":int", ":float"))
            if is_number and isinstance(event, yaml.ScalarEvent) and len(event.value) > _DIGITS:
                what = f"is a number of {len(event.value)} digits"
                raise self._refused(event, what, f"write at most {_DIGITS}, or quotes around a text")
            self._finished[id(node)] = self._nodes - before, self._deepest - self._depth
        self._depth -= 1
        self._deepest = max(outer, self._deepest)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError) as error:  # PyYAML lets these through for a wrong scalar
            reason = str(error) if isinstance(error, ValueError) else f"{str(node.value)[:40]!r} is not of that type"
            raise _NotAValueError(None, None, reason, node.start_mark) from None

    def _take(self, event: yaml.Event, nodes: int, depth: int) -> None:
        self._nodes += nodes
        self._deepest = max(self._deepest, depth)
        if self._nodes > _NODES:
            what = f"contains more than {_NODES} keys and values after its aliases are expanded"
            raise self._refused(event, what, "split it, or use fewer aliases")
        if self._deepest > _DEPTH:
            raise self._refused(event, f"is nested too deeply, in more than {_DEPTH} levels", "reduce the nesting")

    def _refused(self, at: yaml.Event, what: str, remedy: str) -> InputError:
        return InputError.single(self._file, _place(at.start_mark) if self._file else "", what, remedy)


class _NotAValueError(yaml.constructor.ConstructorError):
    """A scalar that is not of the type that its tag or its form says, such as the 13th month of a year."""


def _place(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""


def _syntax_problem(text: str, file: str, error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return Problem(file, "", f"YAML syntax: {error.problem}", "check indentation, colons and quotes")
    place = _place(mark)
    line = _LINE_BREAK.split(text)[mark.line]
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return Problem(file, place, "indented with a tab", "YAML allows spaces only: write two spaces for each tab")
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


def _check_schema(document: YamlMapping, schema: str, upgrade: str) -> None:
    given = document.values.get("schema")
    if given == schema:
        return
    if given is None:
        raise InputError.single(document.file, "", "has no 'schema' key", f"add the line 'schema: {schema}'")
    kind, _, version = schema.rpartition("/")
    what = f"{given!r} is not the schema expected here"
    if isinstance(given, str) and given.rpartition("/")[0] == kind:
        what = f"{given!r} is another version; this simgpu reads version {version}"
        if given.rpartition("/")[2] < version:
            raise InputError.single(document.file, document.place("schema"), what, upgrade)
    raise InputError.single(document.file, document.place("schema"), what, f"write 'schema: {schema}'")
