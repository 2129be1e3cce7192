"""Files that are not a readable YAML mapping: one clear message each, with line and column where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpu.errors import InputError
from simgpu.yamlfile import read_yaml_mapping

SCHEMA = "simgpu.node/1"


def told(path: Path) -> list[str]:
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
            b"\x7fELF\x02\x01\x00\xd0",
            "line 1: is not text: byte 7 (0xd0) is not UTF-8; give a YAML text file, saved as UTF-8",
        ),
        (b"abc\x00def", "line 1: is a binary file; give a YAML text file"),
        (
            b"schema: simgpu.node/1\ngpu:\n\tmemory: 8 GiB\n",
            "line 3, column 1: indented with a tab; YAML takes spaces only: write two spaces for each tab",
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
        (b"schema: simgpu.scenario/1\n", "line 1, schema: 'simgpu.scenario/1' is not the schema expected here"),
        (b"schema: 1\n", "line 1, schema: 1 is not the schema expected here"),
        (b"schema: simgpu.node/1\nno: 1\n", "line 2: the key 'no' is not a text; put quotes around it"),
        (b"schema: simgpu.node/1\na: !!python/object:os.system {}\n", "line 2, column 4: YAML syntax: could not"),
        (b"schema: simgpu.node/1\nday: 2024-13-45\n", "is not YAML: month must be in 1..12; put quotes around texts"),
        (b"schema: " + b"[" * 5000, "is nested too deeply; write it flatter"),
    ],
)
def test_what_is_wrong_with_the_text(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(content)
    (message,) = told(path)
    assert message.startswith(expected)


def test_keys_given_twice_are_all_told(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text("schema: simgpu.node/1\ngpu:\n  memory: 1\n  memory: 2\ngpu: 3\n", encoding="utf-8")
    assert told(path) == [
        "line 4, gpu.memory: given twice, first on line 3; keep one of them",
        "line 5, gpu: given twice, first on line 2; keep one of them",
    ]


def test_missing_file_and_folder(tmp_path: Path) -> None:
    assert told(tmp_path / "none.yaml") == ["no such file; check the path"]
    assert told(tmp_path) == ["is a folder; give a YAML text file"]


def test_lines_of_keys_items_and_missing_keys(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text("schema: simgpu.node/1\npolicies:\n  - none\n  - vdnn: {mode: all}\n", encoding="utf-8")
    document = read_yaml_mapping(path, SCHEMA)
    assert document.place("policies[1].vdnn.mode") == "line 4, policies[1].vdnn.mode"
    assert document.place("policies[1].vdnn.window") == "line 4, policies[1].vdnn.window"
    assert document.place("node") == "node"


def test_a_byte_order_mark_and_aliases_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(b"\xef\xbb\xbfschema: simgpu.node/1\na: &x {b: 1}\nc: *x\n")
    assert read_yaml_mapping(path, SCHEMA).values["c"] == {"b": 1}
