"""No private dialect in identifiers, keys, options and documents; public class names are unique in the core."""

from __future__ import annotations

import ast
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from simgpu.cli import main

ROOT = Path(__file__).parent.parent
DOCUMENTED = ("simgpu", "configs", "scenarios", "traces", "notebooks", "tests")
DOCUMENTS = sorted({ROOT / "README.md", *(path for top in DOCUMENTED for path in (ROOT / top).rglob("*.md"))})

#: Each has a common word: reported, next to, counterpart, note, requested.
DIALECT = frozenset(
    ["told", "tell", "tells", "telling", "beside", "besides", "twin", "twins", "remark", "remarks", "asked"]
)
#: These modules list former names, and test that they are refused.
FORMER_NAMES = {ROOT / "simgpu/former_names.py", ROOT / "tests/test_migration.py", Path(__file__)}
SOURCES = sorted({*(ROOT / "simgpu").rglob("*.py"), *(ROOT / "tests").rglob("*.py")} - FORMER_NAMES)
#: In prose these had a private sense.
PROSE = re.compile(
    r"\b(told|beside|twins?|remarks?|made again|is there of|there is of|given back|let go of|such as are)\b",
    re.IGNORECASE,
)
#: Comments and strings; since Python 3.12 the text of f-strings has tokens of its own.
PROSE_TOKENS = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
#: Packages of the core, where a public class name means one thing.
CORE = {
    "trace", "hardware", "timeline", "graph", "memory", "compression", "program", "planning", "machine", "policies",
    "simulation",
}  # fmt: skip


def words_of(name: str) -> set[str]:
    """The words of an identifier, in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def names_in(tree: ast.AST) -> Iterator[str]:
    """Every name that a module defines or uses as an argument, and every string that has the form of a key."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                yield name
            case ast.keyword(arg=str(name)):
                yield name
            case ast.Constant(value=str(text)) if re.fullmatch(r"[a-z]+([_.-][a-z]+)*", text):
                yield text


@pytest.mark.slow
def test_identifiers_and_keys_use_established_terms() -> None:
    offenders = {}
    for path in SOURCES:
        names = {*names_in(ast.parse(path.read_text(encoding="utf-8"))), path.stem}
        if wrong := {name for name in names if words_of(name) & DIALECT}:
            offenders[path.relative_to(ROOT).as_posix()] = wrong
    assert not offenders


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line numbers and text of a document, or of the strings and comments of a module."""
    if path.suffix == ".md":
        yield from enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        return
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in PROSE_TOKENS:
                yield from enumerate(token.string.splitlines(), token.start[0])


def options_of(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    """Each command, option and argument below a command, with its place."""
    for parameter in command.params:
        for name in (*parameter.opts, *parameter.secondary_opts):
            yield path, name
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield path, name
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield from options_of(below, f"{path} {name}")


def test_commands_and_options_use_established_terms() -> None:
    options = list(options_of(main, "simgpu"))
    assert len(options) > 100
    assert not [place for place in options if words_of(place[1]) & DIALECT]


@pytest.mark.slow
def test_documents_docstrings_and_messages_use_established_terms() -> None:
    offenders = []
    for path in (*DOCUMENTS, *(path for path in SOURCES if path.is_relative_to(ROOT / "simgpu"))):
        for line, text in prose_of(path):
            if match := PROSE.search(text):
                offenders.append(f"{path.relative_to(ROOT)}:{line}: {match[0]}")
    assert not offenders


@pytest.mark.slow
def test_public_class_names_are_unique_in_the_core() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "simgpu").rglob("*.py")):
        module = path.relative_to(ROOT / "simgpu")
        if module.parts[0].removesuffix(".py") in CORE:
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(module.as_posix())
    assert len(places) > 200
    assert not {name: modules for name, modules in places.items() if len(modules) > 1}
