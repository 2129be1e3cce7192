"""Every reader refuses pipes, devices, folders, and files and contents above the limit for their kind."""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import signal
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import dictionaries, integers, lists, recursive, text

from simgpu.compression.buddy.sources import read_snapshots
from simgpu.compression.buddy.stored import load_entries
from simgpu.compression.codecs.gpu.samples import read_samples
from simgpu.errors import InputError
from simgpu.experiments.regression.store import read_events
from simgpu.experiments.scenarios.load import load_scenario
from simgpu.experiments.sweep.store import Store, stored
from simgpu.hardware.nodes import load_node
from simgpu.importers import ImportOptions, import_trace, json_stream
from simgpu.importers.json_stream import items
from simgpu.io.array_files import open_archive, open_array
from simgpu.io.input_files import open_input, read_gzip_text, read_json, read_text
from simgpu.timeline.reading import read_timeline
from simgpu.trace.columns import KERNELS
from simgpu.trace.tables import read_table
from simgpu.validation.folder import read_spans
from tests.importers.kineto_files import small_run

MIB = 2**20


def table(path: Path) -> object:
    if problems := read_table(path, KERNELS).problems:
        raise InputError(problems)
    return None


def spans(path: Path) -> object:
    if problems := read_spans(path).problems:
        raise InputError(problems)
    return None


def parquet(path: Path) -> object:
    pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")
    return read_timeline(path, path.with_name("memory.csv"), iteration_ends_ns=[1])


def execution_trace(path: Path) -> object:
    profile, _ = small_run()
    return import_trace(profile.write(path.with_name("profile.json")), ImportOptions(execution_trace=path))


def store(path: Path) -> object:
    return Store(path.parent).close()


#: The name of a file, and what reads it.
READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "text": ("a.csv", read_text),
    "gzip text": ("a.csv.gz", read_gzip_text),
    "scenario": ("a.yaml", load_scenario),
    "node": ("a.yaml", load_node),
    "JSON": ("a.json", read_json),
    "table": ("kernels.csv", table),
    "stored timeline": ("none.csv.gz", read_events),
    "spans": ("plain.csv.gz", spans),
    "samples": ("samples.csv", read_samples),
    "Parquet": ("timeline.parquet", parquet),
    "recording": ("net.json", import_trace),
    "execution trace": ("graph.json", execution_trace),
    "entries": ("entries.npz", load_entries),
    "array": ("a.npy", open_array),
    "snapshots": ("a.npz", lambda path: read_snapshots([path])),
    "points": ("points.sqlite", store),
    "points, read only": ("points.sqlite", lambda path: list(stored(path.parent))),
}


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link_to_a_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 5 * 2**30)


#: What stands in the file's place, and what is said of it.
OTHERS = {
    pipe: "is a named pipe, not a file; save its content to a file, and give that",
    link_to_a_pipe: "is a named pipe, not a file",
    device: "is a device, not a file",
    folder: "is a folder; give ",
    sparse: "",
}


@pytest.fixture(autouse=True)
def _soon() -> Iterator[None]:
    """Whoever waits for a pipe fails instead."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(20)
    yield
    signal.alarm(0)


def refused(read: Callable[[], object]) -> tuple[str, int]:
    """The message of an `InputError`, and the peak memory in bytes until it was raised."""
    tracemalloc.start()
    try:
        with pytest.raises(InputError) as caught:
            read()
        return str(caught.value), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


#: Of a folder these read what lies in it.
OF_FOLDERS = {("recording", folder), ("snapshots", folder)}
CASES = [(reader, other) for reader in READERS for other in OTHERS if (reader, other) not in OF_FOLDERS]


@pytest.mark.parametrize(("reader", "other"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_special_files_are_refused_at_once(reader: str, other: Callable[[Path], None], tmp_path: Path) -> None:
    name, read = READERS[reader]
    path = tmp_path / name
    other(path)
    said, peak = refused(lambda: read(path))
    assert f"{path}: {OTHERS[other]}" in said
    assert peak < 16 * MIB


NINE_OF_EACH = """\
schema: simgpu.scenario/2
a: &a [x,x,x,x,x,x,x,x,x]
b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]
c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]
d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]
e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]
f: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]
g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]
h: &h [*g,*g,*g,*g,*g,*g,*g,*g,*g]
name: *h
"""


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 5 * 2**30], ids=["aliases", "sparse"])
def test_a_hostile_scenario_is_refused_in_little_memory(size: int, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(NINE_OF_EACH, encoding="utf-8")
    if size:
        os.truncate(path, size)
    command = [sys.executable, "-c", "from simgpu.cli import main; main(prog_name='simgpu')", "run", str(path)]

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))

    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "OPENBLAS_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, preexec_fn=limited, timeout=60)
    expected = "has 5 GiB, and the limit for a YAML text file is 4 MiB" if size else "contains more than 50000 keys and"
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"Error: {path}: ") and expected in ended.stderr


class TestGzip:
    def test_decompression_stops_at_the_limit(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv.gz"
        path.write_bytes(gzip.compress(b"a" * (64 * MIB)))
        said, peak = refused(lambda: read_gzip_text(path, "a gzipped table", limit=2 * MIB))
        assert f"{path}: contains more than 2 MiB, the limit for a gzipped table; check that it is" in said
        assert peak < 16 * MIB

    @pytest.mark.parametrize("read", [read_events, spans], ids=["stored timeline", "spans"])
    def test_decompression_of_binary_data_stops_at_its_first_zero(
        self, read: Callable[[Path], object], tmp_path: Path
    ) -> None:
        path = tmp_path / "a.csv.gz"
        path.write_bytes(gzip.compress(bytes(64 * MIB), 1))
        said, peak = refused(lambda: read(path))
        assert f"{path}: line 1: is a binary file" in said
        assert peak < 16 * MIB


def depth(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth, inner), default=0) if isinstance(inner, Iterable) and not isinstance(value, str) else 0


class TestStreams:
    """Items of an array, read one by one, with limits on size and nesting."""

    @pytest.mark.parametrize(
        "item", [b'"' + b"a" * 3 * MIB + b'"', b"[" + b"1," * 2 * MIB + b"1]", b" " * 3 * MIB + b"1"]
    )
    def test_an_item_above_the_size_limit_is_refused(
        self, item: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(json_stream, "_ITEM_LIMIT", MIB)
        path = tmp_path / "a.json.gz"
        path.write_bytes(gzip.compress(b'{"events": [1,' + item + b"]}"))
        with pytest.raises(InputError, match=r"a\.json\.gz: contains a value of more than 1 MiB; it is damaged"):
            list(items(path, "events"))

    def test_the_number_of_short_items_is_not_limited(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(json_stream, "_ITEM_LIMIT", MIB)
        path = tmp_path / "a.json"
        path.write_text(json.dumps({"events": [{"name": "[" * 9 + "x" * 90}] * 40_000}))
        assert path.stat().st_size > 4 * MIB
        assert sum(1 for _ in items(path, "events")) == 40_000

    @pytest.mark.parametrize(
        "before",
        [b"", b'"' + b"]" * 2 * MIB + b'", ', rb'"\\", "\"]", ', b'"' + rb"\"]" * MIB + b'", '],
        ids=["alone", "behind brackets in a text", "behind escapes", "behind many escapes"],
    )
    @pytest.mark.slow
    def test_a_deeply_nested_item_is_refused(self, before: bytes, tmp_path: Path) -> None:
        path = tmp_path / "a.json"
        path.write_bytes(b'{"events": [' + before + b"[" * MIB)
        said, peak = refused(lambda: list(items(path, "events")))
        assert f"{path}: is nested too deeply; it is damaged" in said
        assert peak < 64 * MIB

    @pytest.mark.parametrize(("levels", "reads"), [(98, True), (99, False)])
    def test_items_are_read_up_to_the_nesting_limit(self, levels: int, reads: bool, tmp_path: Path) -> None:
        path = tmp_path / "a.json"
        path.write_text('{"events": [' + "[" * levels + r'"[[[\"[[["' + "]" * levels + "]}")
        with nullcontext() if reads else pytest.raises(InputError, match="is nested too deeply"):
            assert len(list(items(path, "events"))) == 1

    @given(
        value=recursive(text('[]{}\\"a', max_size=5), lambda inner: lists(inner) | dictionaries(text(), inner)),
        size=integers(1, 9),
    )
    def test_nesting_depth_does_not_depend_on_chunk_size(self, value: object, size: int) -> None:
        written = json.dumps(value, ensure_ascii=False).encode()
        nesting = json_stream._Nesting()
        deepest = max(nesting.deepest(written[at : at + size]) for at in range(0, len(written), size))
        assert deepest == depth(value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[" * 100_000, "is nested too deeply; write it again"),
        ('{"a":' * 100_000, "is nested too deeply"),
        ("1" * 5000, "contains a number of too many digits"),
        ("[1, NaN]", "is not JSON: NaN is no finite number"),
        ("[1e999]", "is not JSON: 1e999 is no finite number"),
        ('{"a": 1,\n', "line 2: is not JSON: Expecting property name enclosed in double quotes; is it cut off?"),
    ],
    ids=lambda value: value[:12],
)
def test_unreadable_json_is_reported(content: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_json(path)
    assert str(caught.value).startswith(f"{path}: {expected}")


def archive_of(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def npy(shape: tuple[int, ...], data: bytes = b"", dtype: str = "|u1") -> bytes:
    """A file in the format of numpy.save whose header may be wrong."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue() + data


class TestArchives:
    @pytest.mark.parametrize(
        ("member", "expected"),
        [
            (npy((2**50,)), "a: is damaged or was cut off: its header states 1125899906842624 B of data"),
            (npy((2,), b"abc"), "a: is damaged or was cut off: its header states 2 B of data"),
            (npy((-1,), b""), "a: is damaged or was cut off: a shape of"),
            (npy((1,), b"x" * 8, "|O"), "a: holds Python objects"),
            (b"no array", "a: is no array"),
        ],
        ids=["larger than its data", "smaller than its data", "negative", "objects", "text"],
    )
    def test_a_header_that_contradicts_its_data_is_refused(self, member: bytes, expected: str, tmp_path: Path) -> None:
        path = archive_of(tmp_path / "a.npz", a=member)
        for read in (load_entries, lambda path: read_snapshots([path])):
            said, peak = refused(lambda read=read: read(path))  # type: ignore[misc]
            assert said.startswith(f"{path}: {expected}")
            assert peak < 16 * MIB

    def test_an_array_above_the_limit_is_refused_without_unpacking(self, tmp_path: Path) -> None:
        path = archive_of(tmp_path / "a.npz", a=npy((64 * MIB,), bytes(64 * MIB)))
        assert path.stat().st_size < MIB
        with open_archive(path) as archive:
            said, peak = refused(lambda: archive.read("a", MIB))
        assert said.startswith(f"{path}: a: unpacks to 64 MiB, with 1 MiB of memory free")
        assert peak < 16 * MIB


def test_files_are_closed_after_reading(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"a,b\n")
    files = Path("/proc/self/fd")
    if not files.exists():
        pytest.skip("this system does not list the open files of a process")
    before = sum(1 for _ in files.iterdir())
    read_text(path)
    for limit in (None, 1):
        with pytest.raises(InputError):
            open_input(tmp_path if limit is None else path, limit=limit)
    assert sum(1 for _ in files.iterdir()) == before
