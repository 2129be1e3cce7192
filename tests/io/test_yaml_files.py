"""Files that are not a readable YAML mapping: one clear message each, with line and column if known."""

from __future__ import annotations

import os
import re
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest

from simgpu.errors import InputError
from simgpu.io import yaml_files as yamlfile
from simgpu.io.yaml_files import read_yaml_mapping

SCHEMA = "simgpu.node/1"


def reported(path: Path) -> list[str]:
    with pytest.raises(InputError) as caught:
        read_yaml_mapping(path, SCHEMA)
    return [str(problem).removeprefix(f"{path}: ") for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty; write the file, starting with its 'schema:' line"),
        (b"\xef\xbb\xbf", "is empty; write the file, starting with its 'schema:' line"),
        (
            b"\xef\xbb\xbfa: 1\nb: \xff",
            "line 2: is not text: byte 11 (0xff) is not UTF-8; give a YAML text file, saved",
        ),
        (b" \n\n", "is empty; write the file, starting with its 'schema:' line"),
        (
            b"\x7fELF\x02\x01\xd0",
            "line 1: is not text: byte 6 (0xd0) is not UTF-8; give a YAML text file, saved as UTF-8",
        ),
        (b"abc\x00def", "line 1: is a binary file; give a YAML text file"),
        (b"\x7fELF\x02\x01\x00\xd0", "line 1: is a binary file; give a YAML text file"),
        (
            b"schema: simgpu.node/1\ngpu:\n\tmemory: 8 GiB\n",
            "line 3, column 1: indented with a tab; YAML allows spaces only: write two spaces for each tab",
        ),
        (b"- a\n- b\n", "is not a mapping of keys to values; write 'key: value' lines, starting with 'schema: "),
        (b"# only a comment\n", "is not a mapping of keys to values; "),
        (b"schema: [1\n", "line 2, column 1: YAML syntax: while parsing a flow sequence expected ',' or ']'"),
        (b"schema: simgpu.node/1\na: 'b\n", "line 3, column 1: YAML syntax: while scanning a quoted scalar"),
        (b"name: x\n", "has no 'schema' key; add the line 'schema: simgpu.node/1'"),
        (
            b"name: x\nschema: simgpu.node/2\n",
            (
                "line 2, schema: 'simgpu.node/2' is another version; this simgpu reads version 1; "
                "write 'schema: simgpu.node/1'"
            ),
        ),
        (
            b"schema: simgpu.scenario/2\n",
            "line 1, schema: 'simgpu.scenario/2' is not the schema expected here",
        ),
        (b"schema: 1\n", "line 1, schema: 1 is not the schema expected here"),
        (b"schema: simgpu.node/1\nno: 1\n", "line 2: the key 'no' is not a text; put quotes around it"),
        (b"schema: simgpu.node/1\na: !!python/object:os.system {}\n", "line 2, column 4: YAML syntax: could not"),
        (b"schema: simgpu.node/1\nday: 2024-13-45\n", "line 2, column 6: is not YAML: month must be in 1..12; put"),
        (
            b"schema: simgpu.node/1\non_: !!bool x\n",
            "line 2, column 6: is not YAML: 'x' is not of that type; put quotes",
        ),
        (b"schema: simgpu.node/1\na: !!timestamp x\n", "line 2, column 4: is not YAML: 'x' is not of that type; put"),
        (
            b"schema: simgpu.node/1\nname: a\x0e\n",
            "line 2: contains the control character '\\x0e'; remove it, or",
        ),
        (
            b"schema: simgpu.node/1\nname: \xc2\x85b: 'c",
            "line 3, column 6: YAML syntax: while scanning",
        ),
        (b"!!set {schema: , a: }", "is not a mapping of keys to values; write 'key: value' lines, starting with"),
    ],
)
def test_syntax_errors_are_reported_with_line_and_column(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(content)
    (message,) = reported(path)
    assert message.startswith(expected)


def test_duplicate_keys_are_all_reported(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text("schema: simgpu.node/1\ngpu:\n  memory: 1\n  memory: 2\ngpu: 3\n", encoding="utf-8")
    assert reported(path) == [
        "line 4, gpu.memory: given twice, first on line 3; keep one of them",
        "line 5, gpu: given twice, first on line 2; keep one of them",
    ]


def test_a_missing_file_and_a_folder_are_reported(tmp_path: Path) -> None:
    assert reported(tmp_path / "none.yaml") == ["no such file; check the path"]
    assert reported(tmp_path) == ["is a folder; give a YAML text file"]


def test_keys_items_and_missing_keys_have_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text("schema: simgpu.node/1\npolicies:\n  - none\n  - vdnn: {mode: all}\n", encoding="utf-8")
    document = read_yaml_mapping(path, SCHEMA)
    assert document.place("policies[1].vdnn.mode") == "line 4, policies[1].vdnn.mode"
    assert document.place("policies[1].vdnn.window") == "line 4, policies[1].vdnn.window"
    assert document.place("node") == "node"


def test_a_byte_order_mark_and_aliases_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(b"\xef\xbb\xbfschema: simgpu.node/1\na: &x {b: 1}\nc: *x\n")
    assert read_yaml_mapping(path, SCHEMA).values["c"] == {"b": 1}


HEAD = "schema: simgpu.node/1\n"
NINE = "".join(f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in pairwise("abcdefgh"))
LIMITS = {
    # 9 values in a, and 7 more lists of 9 aliases each: 9**8 values in h. Up to e there are 9 + ... + 9**5 = 66,429.
    "aliases": (
        "a: &a [x,x,x,x,x,x,x,x,x]\n" + NINE,
        "line 6, column .*: contains more than 50000 keys and values after",
    ),
    "merge keys": (
        "a: &a {x: 1}\n" + "".join(f"{n}: &{n} {{<<: [{','.join([f'*{b}'] * 9)}]}}\n" for b, n in pairwise("abcdefgh")),
        "line 7, column .*: contains more than 50000 keys and values after its aliases are expanded; split it",
    ),
    "an alias of what is around it": (
        "a: &a [1, *a]\n",
        r"line 2, column 11: the alias '\*a' contains itself; write out",
    ),
    "101 levels": (
        "a: " + "[" * 100 + "]" * 100 + "\n",
        "line 2, column 103: is nested too deeply, in more than 100 lev",
    ),
    "101 levels by an alias": (
        "a: &a " + "[" * 60 + "]" * 60 + "\nb: " + "[" * 40 + "*a" + "]" * 40 + "\n",
        "line 3, column 44: is nested too deeply",
    ),
    "a long number": ("a: 0x" + "f" * 9_998 + "\n", "line 2, column 4: is a number of 10000 digits; write at most 100"),
}


@pytest.mark.parametrize(("content", "expected"), LIMITS.values(), ids=LIMITS)
def test_a_document_above_a_limit_is_refused_without_building_its_values(
    tmp_path: Path, content: str, expected: str
) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(HEAD + content, encoding="utf-8")
    tracemalloc.start()
    try:
        (message,) = reported(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert re.match(expected, message)
    assert peak < 2 * 2**20


def test_values_are_counted_with_and_without_aliases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yamlfile, "_NODES", 100)
    path = tmp_path / "file.yaml"
    # The root, schema and its value, a: 4. With the list and its 95 values 100.
    path.write_text(f"{HEAD}a: [{'1,' * 95}]\n", encoding="utf-8")
    assert read_yaml_mapping(path, SCHEMA).values["a"] == [1] * 95
    path.write_text(f"{HEAD}a: [{'1,' * 96}]\n", encoding="utf-8")
    assert reported(path)[0].startswith("line 2, column 195: contains more than 100 keys and values")


@pytest.mark.parametrize("content", ["a: " + "[" * 99 + "]" * 99, f"a: {10**99}"])
def test_a_document_at_a_limit_is_read(tmp_path: Path, content: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(f"{HEAD}{content}\n", encoding="utf-8")
    assert read_yaml_mapping(path, SCHEMA).values["a"]


def test_a_large_file_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(HEAD, encoding="utf-8")
    os.truncate(path, 5 * 2**30)
    expected = "has 5 GiB, and the limit for a YAML text file is 4 MiB; check that it is the file you mean, or give a"
    assert reported(path) == [f"{expected} smaller one"]
