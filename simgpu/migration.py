"""Converts files and folders in older formats to the current ones: ``python -m simgpu.migration PATH ...``.

Scenarios, studies, tolerances, trace folders, stored timings and recordings of `simgpu validate` are rewritten in
place, each atomically; comments and layout of YAML files are kept. Files in the current formats are not changed.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from simgpu.errors import InputError
from simgpu.former_names import (
    BLOCK_KINDS,
    MACHINE_KEYS,
    MACHINE_VALUES,
    MEASURES,
    METRICS,
    POLICY_PARAMETERS,
    POLICY_VALUES,
    PUBLISHED_KEYS,
    RUN_KEYS,
    RUNS_MEMBERS,
    SPAN_KINDS,
    TIMELINE_COLUMNS,
    TRACE_COLUMNS,
    TRACE_KEYS,
)
from simgpu.io.atomic import atomic_file
from simgpu.io.input_files import YAML_LIMIT, read_gzip_text, read_json, read_text

#: Schemas of which version 1 is rewritten as version 2.
_YAML_KINDS = ("trace", "scenario", "study", "tolerances", "machine")
_JSON_KINDS = ("timings", "runs")
_TABLES = frozenset(TRACE_COLUMNS)

#: Start and end in the text, and what stands there afterwards.
_Edit = tuple[int, int, str]
_Path = tuple[str, ...]


def migrate(path: Path) -> list[Path]:
    """Rewrites a file, or every file below a folder; returns what changed, in order of names.

    Raises `InputError` for a file that cannot be read or written.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "study.yaml"
    >>> _ = file.write_text("schema: simgpu.tolerances/1\\ntolerances: {bytes_out: 1%}  # mine\\n")
    >>> [each.name for each in migrate(file)], migrate(file)
    (['study.yaml'], [])
    >>> print(file.read_text(), end="")
    schema: simgpu.tolerances/2
    tolerances: {d2h_bytes: 1%}  # mine
    """
    if not path.exists():
        raise InputError.single(
            path, "", "there is no such file", "give scenarios, traces, stored timings or folders of them"
        )
    every = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    files = [each for each in every if each.stat().st_size]
    return [file for file in files if _migrated(file)]


def _migrated(file: Path) -> bool:
    if file.suffix in (".yaml", ".yml"):
        return _rewritten(file, migrated_yaml(read_text(file, "a YAML file", limit=YAML_LIMIT)))
    if file.name in _TABLES and (file.parent / "trace.yaml").is_file():
        return _rewritten(file, _table(read_text(file, "a CSV file"), TRACE_COLUMNS[file.name], {"kind": BLOCK_KINDS}))
    if file.name in ("timings.json", "runs.json"):
        return _rewritten(file, _json(file))
    if file.name.endswith(".csv.gz") and _holds_spans(file.parent):
        return _packed(file)
    return False


def _rewritten(file: Path, text: str | None) -> bool:
    if text is None or text == read_text(file, "a text file", limit=YAML_LIMIT):
        return False
    with atomic_file(file) as part:
        part.write_text(text, encoding="utf-8", newline="")
    return True


def migrated_yaml(text: str) -> str:
    """A YAML file's text with today's names; the same text where it is of no kind that changed."""
    try:
        root = yaml.compose(text)
    except yaml.YAMLError:
        return text
    if not isinstance(root, yaml.MappingNode):
        return text
    kind, version = _schema(root)
    edits = set(_of_traces(root, kind)) if kind in ("scenario", "study") else set()
    if kind in _YAML_KINDS and version == "1":
        edits |= set(_edits(root, (), kind))
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _schema(root: yaml.MappingNode) -> tuple[str, str]:
    for key, value in root.value:
        if key.value == "schema" and isinstance(value, yaml.ScalarNode):
            name, _, version = value.value.rpartition("/")
            return name.removeprefix("simgpu."), version
    return "", ""


def _of_traces(root: yaml.MappingNode, kind: str) -> Iterator[_Edit]:
    """Keys of modelled traces, whose former names version 2 had too."""
    traces = [node for key, node in root.value if key.value == ("trace" if kind == "scenario" else "traces")]
    if kind == "study":
        traces = [node for each in traces if isinstance(each, yaml.MappingNode) for _, node in each.value]
    for trace in traces:
        for key, _ in trace.value if isinstance(trace, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode):
                written = str(key.value)
                yield from _scalar(key, TRACE_KEYS.get(written, written))


def _edits(node: yaml.Node, path: _Path, kind: str) -> Iterator[_Edit]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield from _scalar(key, _key_today(path, key.value, kind))
                yield from _edits(value, (*path, key.value), kind)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _edits(item, path, kind)
    elif isinstance(node, yaml.ScalarNode):
        yield from _scalar(node, _value_today(path, node.value, kind))


def _scalar(node: yaml.ScalarNode, new: str) -> Iterator[_Edit]:
    if new != node.value:
        start, end = node.start_mark.index, node.end_mark.index
        quote = node.style if node.style in ("'", '"') else ""
        yield start, end, f"{quote}{new}{quote}"


def _key_today(path: _Path, key: str, kind: str) -> str:
    if kind == "tolerances":
        return METRICS.get(key, key) if path == ("tolerances",) else key
    if kind == "machine":
        return MACHINE_KEYS.get(key, key)
    if kind == "study" and path == ("published",):
        return PUBLISHED_KEYS.get(key, key)
    if kind == "study" and len(path) == 2 and path[0] == "runs":
        return RUN_KEYS.get(key, key)
    return POLICY_PARAMETERS.get(path[-1], {}).get(key, key) if path else key


def _value_today(path: _Path, value: str, kind: str) -> str:
    if path == ("schema",):
        return f"simgpu.{kind}/2"
    if kind == "machine":
        return MACHINE_VALUES.get(MACHINE_KEYS.get(path[-1], path[-1]), {}).get(value, value)
    if kind == "study" and path in (("published", "measure"), ("published", "memory"), ("tables",)):
        return MEASURES.get(value, value)
    if len(path) > 1:
        return POLICY_VALUES.get(path[-2], {}).get(path[-1], {}).get(value, value)
    return value


def _table(text: str, columns: Mapping[str, str], cells: Mapping[str, Mapping[str, str]]) -> str:
    """A CSV table with columns of today's names, and today's words in some columns."""
    rows = list(csv.reader(io.StringIO(text, newline="")))
    if not rows:
        return text
    rows[0] = [columns.get(name, name) for name in rows[0]]
    for name, today in cells.items():
        if name in rows[0]:
            at = rows[0].index(name)
            for row in rows[1:]:
                if len(row) > at:
                    row[at] = today.get(row[at], row[at])
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def _holds_spans(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("timings.json", "runs.json"))


def _packed(file: Path) -> bool:
    text = read_gzip_text(file, "a stored timeline", "get it back from version control")
    new = _table(text, TIMELINE_COLUMNS, {"kind": SPAN_KINDS})
    if new == text:
        return False
    with (
        atomic_file(file) as part,
        part.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=raw, mtime=0) as packed,
    ):
        packed.write(new.encode("utf-8"))
    return True


def _json(file: Path) -> str | None:
    document = read_json(file)
    kind, _, version = str(document.get("schema") if isinstance(document, dict) else "").rpartition("/")
    if kind.removeprefix("simgpu.") not in _JSON_KINDS or version != "1":
        return None
    names = METRICS | (RUNS_MEMBERS if kind == "simgpu.runs" else {})
    document = _renamed(document, lambda key: names.get(key, key))
    document["schema"] = f"{kind}/2"
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _renamed(value: Any, today: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {today(key): _renamed(each, today) for key, each in value.items()}
    return [_renamed(each, today) for each in value] if isinstance(value, list) else value


def main(arguments: list[str]) -> int:
    """Migrates the paths of the command line and prints what it rewrote; 2 for bad input."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    try:
        changed = [file for argument in arguments for file in migrate(Path(argument))]
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    for file in changed:
        print(f"rewrote {file}")
    print(f"{len(changed)} files rewritten")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
