"""A trace on disk: round trips, atomic writes, and mistakes reported with their place."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from simgpu.errors import InputError
from simgpu.trace import folder as folder_module
from simgpu.trace.check import check_trace
from simgpu.trace.columns import ACCESSES, ALGORITHMS, BLOCKS, COMPRESSIBILITY, KERNELS, SPARSITY
from simgpu.trace.folder import read_trace, write_trace
from simgpu.trace.model import (
    Access,
    AccessOrder,
    AlgorithmChoice,
    Block,
    CompressedSize,
    Kernel,
    SparsitySample,
    Trace,
)
from tests.trace.small import SMALL, small_folder, traces


def problems_of(folder: Path) -> list[str]:
    with pytest.raises(InputError) as caught:
        read_trace(folder)
    return [str(problem).replace(f"{folder}/", "") for problem in caught.value.problems]


def edit(folder: Path, file: str, change: Callable[[str], str]) -> None:
    path = folder / file
    text = path.read_text(encoding="utf-8")
    changed = change(text)
    assert changed != text
    path.write_text(changed, encoding="utf-8")


@pytest.mark.parametrize(
    ("table", "row"),
    [
        (KERNELS, Kernel),
        (BLOCKS, Block),
        (ALGORITHMS, AlgorithmChoice),
        (SPARSITY, SparsitySample),
        (COMPRESSIBILITY, CompressedSize),
        (ACCESSES, Access),
    ],
)
def test_columns_are_the_fields_in_order(table, row):
    assert [column.name for column in table.columns] == [field.name for field in fields(row)]


def test_small_trace_round_trips(tmp_path):
    read = read_trace(small_folder(tmp_path))
    assert read == SMALL
    assert read.name == "small"


def test_first_entry_round_trips_and_defaults_to_0(tmp_path):
    input_of_four = replace(SMALL.blocks[0], bytes=500)
    within = replace(SMALL.accesses[0], order=AccessOrder.SEQUENTIAL, first=3)
    trace = replace(SMALL, blocks=(input_of_four, *SMALL.blocks[1:]), accesses=(within, *SMALL.accesses[1:]))
    folder = tmp_path / "small"
    write_trace(trace, folder)
    assert read_trace(folder) == trace
    edit(folder, "accesses.csv", lambda text: text.replace(",9,1,3", ",9,1,"))
    assert [access.first for access in read_trace(folder).accesses] == [0, 0]


def test_saved_tensors_round_trip_in_order_and_their_file_is_optional(tmp_path):
    folder = small_folder(tmp_path)
    assert (folder / "saved.csv").read_text().splitlines() == [
        "block,bytes,packed_after,unpacked_before,released_after",
        "x,8,,k4,end",
        "y,64,k2,k4,k3",
        "y,32,k2,,k3",
        "s,16,k3,k4,",
    ]
    write_trace(replace(SMALL, saved=()), tmp_path / "without")
    assert not (tmp_path / "without" / "saved.csv").exists()
    assert read_trace(tmp_path / "without").saved == ()


@settings(max_examples=50, deadline=None)
@given(traces())
def test_every_valid_trace_round_trips(trace: Trace):
    assert check_trace(trace) == []
    with tempfile.TemporaryDirectory() as parent:
        first, second = Path(parent) / "first", Path(parent) / "second"
        write_trace(trace, first)
        assert read_trace(first) == trace
        write_trace(read_trace(first), second)
        names = sorted(entry.name for entry in first.iterdir())
        assert names == sorted(entry.name for entry in second.iterdir())
        assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)


def test_optional_columns_and_tables_may_be_left_out(tmp_path):
    folder = tmp_path / "short"
    folder.mkdir()
    (folder / "trace.yaml").write_text(
        "schema: simgpu.trace/2\nmodel: m\nbatch: 1\ndevice: d\ndtype: float32\norigin: recorded\ntool: t\n"
        "date: 2024-02-29\n"
    )
    (folder / "kernels.csv").write_text("id,op,phase,duration_ns,reads,writes\nk, relu ,forward,5,x,x\n\n")
    (folder / "blocks.csv").write_text("id,bytes,kind,persistent\r\nx,4,input,yes\r\n")
    trace = read_trace(folder)
    assert trace.kernels[0].op == "relu"
    assert trace.kernels[0].pure is None
    assert trace.info.date == "2024-02-29"
    assert trace.blocks == (Block("x", 4, trace.blocks[0].kind, persistent=True),)


#: By file: what is replaced by what, and the place and the message expected.
MISTAKES = {
    "kernels.csv": [
        ("k1,conv2d,forward,100,", "k1,conv2d,forward,-100,", "row 2, column duration_ns", "'-100' is negative"),
        (",20,y", ",20.5,y", "row 3, column duration_ns", "'20.5' is not a whole number"),
        (",20,y", ",2e3,y", "row 3, column duration_ns", "'2e3' is not a whole number"),
        (",20,y", ",5 ms,y", "row 3, column duration_ns", "the column is in nanoseconds; write 5000000"),
        (",20,y", ",twenty,y", "row 3, column duration_ns", "'twenty' is not a number"),
        (",20,y", ",,y", "row 3, column duration_ns", "the cell is blank"),
        (",20,y", f",{2**63},y", "row 3, column duration_ns", "'9223372036854775808' is too large"),
        ("relu_,forward", "relu_,foward", "row 3, column phase", "'foward' is not a phase; did you mean 'forward'?"),
        ("no,,,\n", "maybe,,,\n", "row 6, column pure", "'maybe' is neither yes nor no"),
        (
            "duration_ns",
            "duration_us",
            "row 1, column duration_us",
            "wrong unit: unknown column 'duration_us'; give duration_ns",
        ),
        (",layer,", ",lajer,", "row 1, column lajer", "unknown column 'lajer'; did you mean 'layer'?"),
        ("id,op", "id,id", "row 1, column id", "the column is there twice"),
        (",reads,", ",stream2,", "row 1", "column 'reads' is missing"),
        ("k3,loss", "k2,loss", "row 4, column id", "duplicate id 'k2', first used in row 3"),
        ("k3,loss", "k 3,loss", "row 4, column id", "'k 3' is not an id"),
        ("k5,step", "end,step", "row 6, column id", "'end' cannot be a kernel's id"),
        ("x w,y", "x v,y", "row 2, column reads", "kernel 'k1' names block 'v', which has no row"),
        (",L1,0,100,", ",L1,0,125,", "row 4, column start_ns", "kernel 'k3' is out of order: it starts at 120 ns"),
        (",g t,", ",g t g,", "row 5, column writes", "block 'g' is named twice"),
    ],
    "blocks.csv": [
        ("x,16", "x,16 KiB", "row 2, column bytes", "'16 KiB' carries a unit, the column is in bytes; write 16384"),
        ("bytes", "mbytes", "row 1, column mbytes", "unknown column 'mbytes'; did you mean 'bytes'?"),
        ("id,bytes", "id,bytes_mb", "row 1, column bytes_mb", "wrong unit: unknown column 'bytes_mb'; give bytes"),
        ("4x4", "4by4", "row 4, column shape", "'4by4' is not a shape"),
        (
            "w,8,weight,yes",
            "w,8,weight,no",
            "row 2, column reads",
            "a cycle, each kernel reads what the next one writes: k1 -> k5 ->",
        ),
        (
            "x,16,input,yes",
            "x,16,input,no",
            "row 2, column reads",
            "kernel 'k1' reads block 'x' before anything wrote it",
        ),
        ("no,,k4,L1", "no,,k3,L1", "row 4, column release", "block 'y' is used by kernel 'k4' after its release"),
        ("no,,k4,L1", "no,,k9,L1", "row 4, column release", "'k9' is not a kernel of this trace"),
        (
            "no,k3,k3",
            "no,k4,k4",
            "row 5, column host_write",
            "block 's' is written by the host before kernel 'k4', after",
        ),
        ("no,k3,k3", "yes,k3,k3", "row 5, column host_write", "block 's' is persistent, and yet the host writes it"),
        ("t,32,workspace,no,,", "t,32,workspace,no,,k5", "row 8, column release", "workspace 't' is released at 'k5'"),
        ("t,32,workspace,no", "t,32,workspace,yes", "row 8, column persistent", "workspace 't' is persistent"),
        ("y,64,activation", "y,64,workspace", "row 4, column kind", "workspace 'y' is used by kernels 'k1' and 'k4'"),
    ],
    "sparsity.csv": [
        ("0.62", "1.62", "row 3, column sparsity", "1.62 is not a share of zeros"),
        ("0.62", "nan", "row 3, column sparsity", "nan is not a share of zeros"),
        ("y,10", "yy,10", "row 3, column block", "'yy' is not a block of this trace"),
        ("y,10", "y,0", "row 3", "a second row for y, 0"),
    ],
    "algorithms.csv": [
        ("k1,fft", "q1,fft", "row 3, column kernel", "'q1' is not a kernel of this trace"),
        ("k1,fft", "k1,implicit gemm", "row 3", "a second row for k1, implicit gemm"),
    ],
    "compressibility.csv": [
        ("nchw,32", "nchw,0", "row 2, column entry_bytes", "0 is not possible here"),
    ],
    "accesses.csv": [
        ("k4,x", "k5,x", "row 2, column write", "kernel 'k5' does not read 'x'"),
        ("k4,g,yes", "k4,g,no", "row 3, column write", "kernel 'k4' does not read 'g'"),
        ("random,1", "random,5", "row 2, column sectors", "5 are not sectors of an entry"),
        ("random,1,9", "random,1,0", "row 2, column entries", "0 is not possible here"),
        ("random", "ramdom", "row 2, column order", "'ramdom' is not an order; did you mean 'random'?"),
        ("k4,x,no", "k4,x,maybe", "row 2, column write", "'maybe' is neither yes nor no"),
        ("1,9,1,0", "1,9,1,3", "row 2, column first", "a random walk does not begin at entry 3"),
        ("4,1,2,0", "4,1,2,1", "row 3, column first", "entry 1 is not in block 'g', which has 1 of 128 bytes"),
        ("4,1,2,0", "4,1,2,-1", "row 3, column first", "'-1' is negative"),
    ],
    "saved.csv": [
        ("x,8", "q,8", "row 2, column block", "'q' is not a block of this trace"),
        ("x,8", "x,-8", "row 2, column bytes", "'-8' is negative"),
        ("y,64,k2", "y,64,q2", "row 3, column packed_after", "'q2' is not a kernel of this trace"),
        ("y,64,k2,k4", "y,64,k2,q4", "row 3, column unpacked_before", "'q4' is not a kernel of this trace"),
        (
            "x,8,,k4,end",
            "x,8,,k4,never",
            "row 2, column released_after",
            "name a kernel that has a row in kernels, or 'end'",
        ),
        ("y,64,k2", "y,64,", "row 3, column packed_after", "block 'y' is saved before any kernel has written it"),
        (
            "y,64,k2,k4",
            "y,64,k2,k2",
            "row 3, column unpacked_before",
            "kernel 'k2' unpacks it, and does not run after 'k2'",
        ),
        (
            "s,16,k3,k4,",
            "s,16,k3,k4,k2",
            "row 5, column released_after",
            "it is dropped at kernel 'k2', and saved later",
        ),
        (
            "y,32,k2,,k3",
            "y,32,k2,,k4",
            "row 4, column released_after",
            "block 'y' is dropped at 'k4', and in a row above",
        ),
    ],
    "trace.yaml": [
        ("simgpu.trace/2", "simgpu.trace/3", "", "'simgpu.trace/3' is another version; this simgpu reads version 2"),
        ("device: a bench", "device:\ta bench", "", "found character '\\t'"),
        ("device: a bench", "device: 100", "", "device: 100 is not a text"),
        ("batch: 2", "batch: '2'", "", "batch: '2' is not a whole number"),
        ("batch: 2", "batch: 0", "", "batch: 0 is not a number of samples"),
        ("batch: 2\n", "", "", "key 'batch' is missing"),
        ("batch: 2", "batch: 2\nbatchsize: 2", "", "unknown key 'batchsize'; did you mean 'batch'?"),
        ("batch: 2", "batch: 2\noutput: hold", "", "'hold' is not a lifetime of the output; did you mean 'held'?"),
        ("batch: 2", "batch: 2\ncompute: 16", "", "compute: 16 is not a text"),
        ("modelled", "modeled", "", "'modeled' is not an origin; did you mean 'modelled'?"),
        ("2024-02-29", "2023-02-29", "", "'2023-02-29' is not a day"),
        ("kernels: 5", "kernels: 6", "", "promises 6 rows in kernels.csv, which has 5"),
    ],
}


#: Mistakes from which others follow: an id or a block that is gone is missed elsewhere too.
WITH_CONSEQUENCES = ("id,id", "k2,loss", ",stream2,", "end,step", "k 3,loss", "x v,y")


@pytest.mark.parametrize(
    ("file", "old", "new", "place", "reported"), [(file, *case) for file, cases in MISTAKES.items() for case in cases]
)
def test_mistake_is_reported_with_its_place(tmp_path, file, old, new, place, reported):
    folder = small_folder(tmp_path)
    edit(folder, file, lambda text: text.replace(old, new, 1))
    problems = problems_of(folder)
    assert len(problems) == 1 or new in WITH_CONSEQUENCES
    where = f"{'kernels.csv' if place == 'row 2, column reads' else file}: {place}"
    assert any(problem.startswith(where) and reported in problem for problem in problems), problems


def test_all_problems_are_reported_at_once(tmp_path):
    folder = small_folder(tmp_path)
    edit(folder, "trace.yaml", lambda text: text.replace("batch: 2", "batch: many"))
    edit(folder, "kernels.csv", lambda text: text.replace(",100,x", ",-1,x").replace(",20,y", ",2 us,y"))
    edit(folder, "blocks.csv", lambda text: text.replace("4x4", "4.4"))
    edit(folder, "sparsity.csv", lambda text: text.replace("0.5", "half"))
    files = [problem.split(":")[0] for problem in problems_of(folder)]
    assert files == ["trace.yaml", "kernels.csv", "kernels.csv", "blocks.csv", "sparsity.csv"]


def test_cycle_is_reported_kernel_by_kernel(tmp_path):
    folder = small_folder(tmp_path)
    (folder / "trace.yaml").write_text(
        (folder / "trace.yaml").read_text().replace("kernels: 5", "kernels: 4").replace("blocks: 7", "blocks: 4")
    )
    header = "id,op,phase,duration_ns,reads,writes\n"
    rows = ["k1,a,forward,1,c,a", "k2,b,forward,1,a,b", "k3,c,forward,1,b,c", "k4,d,forward,1,c,d"]
    (folder / "kernels.csv").write_text(header + "\n".join(rows) + "\n")
    (folder / "blocks.csv").write_text("id,bytes,kind\na,1,other\nb,1,other\nc,1,other\nd,1,other\n")
    for name in ("algorithms", "sparsity", "compressibility", "accesses", "saved"):
        (folder / f"{name}.csv").unlink()
    (problem,) = problems_of(folder)
    assert problem.startswith("kernels.csv: row 2, column reads: a cycle")
    assert "k1 -> k3 -> k2 -> k1" in problem


@pytest.mark.parametrize(
    ("file", "content", "reported"),
    [
        ("kernels.csv", None, "kernels.csv: no such file"),
        ("blocks.csv", b"", "blocks.csv: is empty; write it again, or remove it if not needed"),
        ("blocks.csv", b"id,bytes\0,kind\n", "blocks.csv: line 1: is a binary file"),
        (
            "blocks.csv",
            b"id,bytes,kind\nx,4,input\n\xff,4,input\n",
            "blocks.csv: line 3: is not text: byte 24 (0xff) is not UTF-8",
        ),
        ("blocks.csv", b"id;bytes;kind\nx;4;input\n", "blocks.csv: row 1: columns are separated by ';'"),
        ("trace.yaml", None, "trace.yaml: no such file"),
        ("trace.yaml", b"", "trace.yaml: is empty"),
        ("trace.yaml", b"schema\0\0", "trace.yaml: line 1: is a binary file"),
        ("trace.yaml", b"\x89PNG", "trace.yaml: line 1: is not text"),
        ("trace.yaml", b"schema: simgpu.trace/2\n\tmodel: x\n", "tab"),
    ],
)
def test_unreadable_files_are_reported(tmp_path, file, content, reported):
    folder = small_folder(tmp_path)
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    problems = problems_of(folder)
    assert any(reported in problem for problem in problems), problems


@pytest.mark.parametrize("cut", [1, 2, 9, 30])
def test_a_truncated_table_is_reported(tmp_path, cut):
    folder = small_folder(tmp_path)
    edit(folder, "kernels.csv", lambda text: text[:-cut])
    assert any("row 6" in problem and "cut off" in problem for problem in problems_of(folder))


def test_a_table_truncated_at_the_end_of_a_line_is_reported(tmp_path):
    folder = small_folder(tmp_path)
    edit(folder, "kernels.csv", lambda text: text[: text.index("k5,")])
    assert "kernels.csv is complete" in problems_of(folder)[0]


def test_a_trace_without_kernels_is_refused(tmp_path):
    folder = small_folder(tmp_path)
    for file in ("kernels.csv", "blocks.csv"):
        edit(folder, file, lambda text: text.splitlines(keepends=True)[0])
    for name in ("algorithms", "sparsity", "compressibility", "accesses", "saved"):
        (folder / f"{name}.csv").unlink()
    edit(folder, "trace.yaml", lambda text: text.replace("kernels: 5", "kernels: 0").replace("blocks: 7", "blocks: 0"))
    assert problems_of(folder) == ["kernels.csv: no kernels; a trace has at least one kernel"]


SHIPPED = Path(__file__).parents[2] / "traces" / "resnet20-cifar-cpu"


def shipped_copy(tmp_path: Path) -> Path:
    """A copy of a shipped recording: every block has its release, every feature map its sparsity."""
    folder = tmp_path / "resnet20"
    shutil.copytree(SHIPPED, folder)
    assert (folder / "sparsity.csv").exists()
    return folder


@pytest.mark.parametrize("promised", [True, False])
@pytest.mark.parametrize(
    ("file", "reported", "reported_unpromised"),
    [
        ("kernels.csv", "has no rows, and trace.yaml promises ", "no kernels; a trace has at least one kernel"),
        ("blocks.csv", "has no rows, and trace.yaml promises ", "no blocks, although kernels name some, 'input' for"),
    ],
)
def test_a_table_without_rows_is_one_problem(tmp_path, file, reported, reported_unpromised, promised):
    folder = shipped_copy(tmp_path)
    edit(folder, file, lambda text: text.splitlines(keepends=True)[0])
    if not promised:
        edit(folder, "trace.yaml", lambda text: re.sub(r"(?m)^(kernels|blocks): \d+\n", "", text))
    (problem,) = problems_of(folder)
    assert problem.startswith(f"{file}: {reported if promised else reported_unpromised}")


@pytest.mark.parametrize("content", [None, b"", b"\x89PNG"])
@pytest.mark.parametrize("file", ["kernels.csv", "blocks.csv"])
def test_an_unreadable_table_is_one_problem(tmp_path, file, content):
    folder = shipped_copy(tmp_path)
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    (problem,) = problems_of(folder)
    assert problem.startswith(f"{file}: ")


def test_a_shipped_table_cut_at_the_end_of_a_line_is_one_problem(tmp_path):
    folder = shipped_copy(tmp_path)
    edit(folder, "kernels.csv", lambda text: "".join(text.splitlines(keepends=True)[:100]))
    (problem,) = problems_of(folder)
    assert "which has 99: is kernels.csv cut off?" in problem


def test_rows_beyond_the_promised_count_are_checked(tmp_path):
    folder = small_folder(tmp_path)
    edit(folder, "trace.yaml", lambda text: text.replace("kernels: 5", "kernels: 4"))
    edit(folder, "kernels.csv", lambda text: text.replace("k3,loss", "k2,loss", 1))
    problems = problems_of(folder)
    assert "promises 4 rows in kernels.csv, which has 5" in problems[0]
    assert any("duplicate id 'k2'" in problem for problem in problems)


def test_a_mistake_in_every_row_is_listed_twenty_times_and_counted(tmp_path):
    folder = shipped_copy(tmp_path)
    edit(folder, "kernels.csv", lambda text: re.sub(r"(?m)^k", "q", text))
    edit(folder, "blocks.csv", lambda text: text.replace(",activation,", ",feature map,", 1))
    with pytest.raises(InputError) as caught:
        read_trace(folder)
    problems, lines = caught.value.problems, str(caught.value).splitlines()
    released = [problem for problem in problems if problem.place.endswith("column release")]
    assert len(released) > 100
    shown = [line for line in lines if "column release: 'k" in line]
    assert shown == [str(problem) for problem in released[:20]]
    assert f"{folder / 'blocks.csv'}: {len(released) - 20} more like that of {released[19].place}" in lines
    assert sum("'feature map' is not a kind" in line for line in lines) == 1


def test_a_misspelt_table_is_refused_and_other_files_are_ignored(tmp_path):
    folder = small_folder(tmp_path)
    (folder / "README.md").write_text("about this trace")
    assert read_trace(folder) == SMALL
    (folder / "sparsty.csv").write_text("block,epoch,sparsity\n")
    (problem,) = problems_of(folder)
    assert problem.startswith("sparsty.csv: not a file of a trace; did you mean 'sparsity.csv'?")


def test_a_folder_without_a_trace_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        read_trace(tmp_path / "nowhere")
    with pytest.raises(InputError, match="is not a trace"):
        read_trace(tmp_path)


def test_writing_replaces_only_a_trace(tmp_path):
    folder = small_folder(tmp_path)
    smaller = Trace(SMALL.info, SMALL.kernels, SMALL.blocks)
    write_trace(smaller, folder)
    assert read_trace(folder) == smaller
    assert not (folder / "sparsity.csv").exists()
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match=r"not from a trace, such as 'thesis\.txt'"):
        write_trace(smaller, folder)
    with pytest.raises(InputError, match="is not a folder"):
        write_trace(smaller, folder / "thesis.txt")
    with pytest.raises(InputError, match="cannot be"):
        write_trace(smaller, folder / "thesis.txt" / "below")
    assert (folder / "thesis.txt").read_text() == "years of work"
    assert [entry.name for entry in tmp_path.iterdir()] == ["small"]


def test_failed_write_keeps_the_old_folder(tmp_path, monkeypatch):
    folder = small_folder(tmp_path)

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder_module, "write_table", full_disk)
    other = Trace(SMALL.info, SMALL.kernels, SMALL.blocks)
    with pytest.raises(InputError, match="No space left"):
        write_trace(other, folder)
    with pytest.raises(InputError, match="No space left"):
        write_trace(other, tmp_path / "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["small"]
    assert read_trace(folder) == SMALL


def test_an_invalid_trace_is_not_written(tmp_path):
    with pytest.raises(InputError, match="no kernels"):
        write_trace(Trace(SMALL.info, (), ()), tmp_path / "empty")
    assert list(tmp_path.iterdir()) == []


README = Path(__file__).parents[2] / "traces" / "README.md"


@pytest.mark.parametrize("table", [KERNELS, BLOCKS, ALGORITHMS, SPARSITY, COMPRESSIBILITY])
def test_every_column_is_documented(table):
    section = README.read_text(encoding="utf-8").partition(f"\n## {table.file}\n")[2].partition("\n## ")[0]
    assert [column.name for column in table.columns if f"`{column.name}`" not in section] == []
    header = ",".join(column.name for column in table.columns)
    assert "```csv" not in section or f"```csv\n{header}\n" in section
