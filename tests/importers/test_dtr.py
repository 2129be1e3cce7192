"""DTR logs: real ones against published facts and an independent walk, small ones line by line, damaged ones."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from simgpu.errors import InputError
from simgpu.graph.recompute import Ancestry, Unrecomputable, unrecomputable
from simgpu.graph.taskgraph import TaskGraph
from simgpu.importers import ImportOptions, detect, import_trace
from simgpu.importers.dtr import MEMORY_FACTOR
from simgpu.io import free_memory
from simgpu.trace.check import check_trace
from simgpu.trace.model import BlockKind, Origin, Phase
from simgpu.trace.stats import trace_stats

LOGS = Path(__file__).parents[3] / "shared" / "data" / "titanv-dtr"

#: Operator calls, compute (ns), bytes of constants, peak (bytes), operators before the backward pass.
FACTS = {
    "resnet32-b56": (286, 291905487, 35584920, 10061179152, 155),
    "densenet121-b84": (2072, 355299140, 82830040, 11020749360, 557),
    "unet-b6": (247, 435278292, 93386276, 8415764640, 128),
    "transformer-b10": (2821, 276259118, 263197248, 9864405000, 1157),
}


def walk(path: Path) -> tuple[int, int, int, int, int]:
    """The facts straight from the lines: bytes come with a new storage and go with its last name."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = lines[1 + next(n for n, line in enumerate(lines) if line.get("ANNOTATION") == "START") :]
    storage_of: dict[str, str] = {}
    names: Counter[str] = Counter()
    size: dict[str, int] = {}
    calls = time = constants = live = peak = backward_from = 0
    constant, arguments = "", []
    for line in lines:
        match line:
            case {"INSTRUCTION": "CONSTANT", "NAME": name}:
                constant = name
            case {"INSTRUCTION": "MEMORY", "NAME": name, "MEMORY": memory}:
                size[name] = int(memory)
                if name == constant:
                    storage_of[name], names[name] = name, 1
                    constants += size[name]
                    live += size[name]
            case {"INSTRUCTION": "ALIAS", "NAME": name, "ALIAS": "-1"}:
                storage_of[name], names[name] = name, 1
                live += size[name]
            case {"INSTRUCTION": "ALIAS", "NAME": name, "ALIAS": place}:
                storage_of[name] = storage_of[arguments[int(place)]]
                names[storage_of[name]] += 1
            case {"INSTRUCTION": "CALL" | "MUTATE", "ARGS": arguments, "TIME": duration}:
                calls += 1
                time += int(duration)
            case {"INSTRUCTION": "COPY", "DST": new, "SRC": source}:
                storage_of[new] = storage_of[source]
                names[storage_of[new]] += 1
            case {"INSTRUCTION": "RELEASE", "NAME": name}:
                storage = storage_of.pop(name)
                names[storage] -= 1
                live -= size[storage] if not names[storage] else 0
            case {"INSTRUCTION": "ANNOTATE", "ANNOTATION": "BACKWARD"}:
                backward_from = calls
            case _:
                raise AssertionError(line)
        peak = max(peak, live)
    return calls, time, constants, peak, backward_from


@pytest.mark.slow
@pytest.mark.parametrize("name", FACTS)
def test_recorded_logs_match_their_published_facts(name):
    path = LOGS / f"{name}.log"
    if not path.exists():
        pytest.skip("the recorded logs are not next to the repository (../shared/data/titanv-dtr)")
    trace, recognised = import_trace(path)
    stats = trace_stats(trace)
    forward = sum(kernel.phase is Phase.FORWARD for kernel in trace.kernels)
    assert stats.peak_recorded is not None
    result = (stats.kernels, stats.compute_ns, stats.constant_bytes, stats.peak_recorded.bytes, forward)
    assert result == FACTS[name] == walk(path)
    assert recognised == "DTR log"
    assert (trace.info.origin, trace.info.model, trace.info.batch) == (
        Origin.IMPORTED,
        name.rpartition("-b")[0],
        int(name.rpartition("-b")[2]),
    )
    assert stats.lifetimes_known == stats.lifetimes_expected


def line(instruction: str, **fields: object) -> str:
    return json.dumps({"INSTRUCTION": instruction, **fields})


START = line("ANNOTATE", ANNOTATION="START")


def constant(name: str, size: int) -> list[str]:
    return [line("CONSTANT", NAME=name), line("MEMORY", NAME=name, MEMORY=str(size))]


def call(op: str, arguments: list[str], *results: tuple[str, int, int], time: int = 5) -> list[str]:
    names = [name for name, _, _ in results]
    lines = [line("CALL", NAME=op, ARGS=arguments, RESULT=names, TIME=str(time))]
    for name, size, alias in results:
        lines += [line("MEMORY", NAME=name, MEMORY=str(size)), line("ALIAS", NAME=name, ALIAS=str(alias))]
    return lines


def release(*names: str) -> list[str]:
    return [line("RELEASE", NAME=name) for name in names]


SMALL = [
    *constant("setup", 1000),
    START,
    *constant("w", 8),
    line("COPY", DST="w2", SRC="w"),
    *release("w"),
    *constant("x", 16),
    *constant("gone", 4),
    *release("gone"),
    *call("cudnn_convolution", ["x", "w2"], ("y", 64, -1), ("scratch", 7, -1)),
    *release("scratch"),
    line("MUTATE", NAME="relu_", ARGS=["y"], MUTATE=[0], TIME="3"),
    *call("view", ["y"], ("v", 0, 0)),
    *release("y"),
    *constant("eps", 8),
    *call("mul", ["v", "eps"], ("z", 64, -1)),
    *release("eps"),
    line("ANNOTATE", ANNOTATION="BACKWARD"),
    *call("mul_backward", ["z", "v"], ("g", 64, -1)),
    *release("v", "z", "x"),
    *call("cudnn_convolution_backward", ["g", "w2"], ("gw", 8, -1)),
    *release("g"),
    line("COPY_FROM", DST="other", SRC="gw"),
    *release("gw"),
]


def written(tmp_path: Path, lines: list[str], end: str = "\n") -> Path:
    path = tmp_path / "net-b4.log"
    path.write_text("\n".join(lines) + end)
    return path


def test_names_become_blocks(tmp_path):
    trace, _ = import_trace(written(tmp_path, SMALL))
    assert [(kernel.id, kernel.op, kernel.reads, kernel.writes) for kernel in trace.kernels] == [
        ("1", "cudnn_convolution", ("x", "w"), ("y", "scratch")),
        ("2", "relu_", ("y",), ("y",)),
        ("3", "view", ("y",), ()),
        ("4", "mul", ("y", "eps"), ("z",)),
        ("5", "mul_backward", ("z", "y"), ("g",)),
        ("6", "cudnn_convolution_backward", ("g", "w"), ("gw",)),
    ]
    lives = {block.id: (block.persistent, block.host_write, block.release) for block in trace.blocks}
    assert lives == {
        "w": (True, None, None),
        "x": (True, None, "5"),
        "gone": (True, None, "1"),
        "y": (False, None, "5"),
        "scratch": (False, None, "1"),
        "eps": (False, "4", "4"),
        "z": (False, None, "5"),
        "g": (False, None, "6"),
        "gw": (False, None, "end"),
    }
    kinds = {block.id: block.kind for block in trace.blocks}
    assert kinds["w"] is BlockKind.WEIGHT
    assert kinds["x"] is BlockKind.INPUT
    assert kinds["y"] is kinds["z"] is BlockKind.ACTIVATION
    assert kinds["g"] is BlockKind.GRADIENT
    assert kinds["gw"] is BlockKind.WEIGHT_GRADIENT
    assert kinds["eps"] is kinds["gone"] is BlockKind.OTHER
    assert trace_stats(trace).constant_bytes == 8 + 16 + 4 + 8
    assert check_trace(trace) == []


def test_options_override_the_file_name(tmp_path):
    path = written(tmp_path, SMALL)
    trace, _ = import_trace(path, ImportOptions(batch=32, device="Titan V", dtype="float32", date="2020-06-17"))
    assert (trace.info.model, trace.info.batch, trace.info.device) == ("net", 32, "Titan V")
    unnamed = path.rename(tmp_path / "log.txt")
    with pytest.raises(InputError, match="does not contain its batch size"):
        import_trace(unnamed)
    assert import_trace(unnamed, ImportOptions(batch=2))[0].info.batch == 2


def test_a_constant_after_the_last_operator_belongs_to_it(tmp_path):
    trace, _ = import_trace(written(tmp_path, [*SMALL, *constant("late", 8), *release("late")]))
    late = trace.block_by_id["late"]
    assert (late.host_write, late.release) == ("6", "6")


def negative_time(lines: list[str]) -> list[str]:
    return [text.replace('"TIME": "3"', '"TIME": "-3"') for text in lines]


@pytest.mark.parametrize(
    ("lines", "end", "reported"),
    [
        (SMALL[:20], '\n{"INSTRUCTION": "REL', "row 21: not a line of JSON: the log seems cut off"),
        ([*SMALL[:20], "hello", *SMALL[20:]], "\n", "row 21: not a line of JSON: 'hello'"),
        ([*SMALL[:20], "[1]", *SMALL[20:]], "\n", "row 21: has no INSTRUCTION"),
        (SMALL[:13], "\n", "the size or alias of 'y' is missing: the log seems cut off"),
        (SMALL[:2], "\n", "has no ANNOTATE START"),
        (SMALL[:6], "\n", "contains no operator"),
        ([*SMALL, line("RELEAS", NAME="w2")], "\n", "unknown instruction 'RELEAS'; did you mean 'RELEASE'?"),
        ([*SMALL, line("ANNOTATE", ANNOTATION="FORWARD")], "\n", "unknown annotation 'FORWARD'"),
        ([*SMALL, *release("w")], "\n", "'w' is not a tensor that exists here"),
        ([*SMALL, line("RELEASE")], "\n", "RELEASE without NAME"),
        ([*SMALL, *call("add", ["w2"], ("q", 4, 1))], "\n", "ALIAS is '1', neither -1 nor the index of an argument"),
        (
            [*SMALL, line("MUTATE", NAME="a", ARGS=["w2"], MUTATE=[1], TIME="1")],
            "\n",
            "MUTATE is [1], with 1 arguments",
        ),
        (
            [*SMALL, line("MEMORY", NAME="w2", MEMORY="4")],
            "\n",
            "MEMORY of 'w2' does not directly follow a CONSTANT or CALL of 'w2'",
        ),
        ([*SMALL, *constant("w2", 4)], "\n", "'w2' is already defined"),
        (negative_time(SMALL), "\n", "TIME is '-3', not a whole number >= 0"),
        ([*SMALL, line("CALL", NAME="a", ARGS="w2", RESULT=[], TIME="1")], "\n", "ARGS is 'w2', not a list of str"),
    ],
)
def test_damaged_logs_are_reported_by_line(tmp_path, lines, end, reported):
    with pytest.raises(InputError) as caught:
        import_trace(written(tmp_path, lines, end))
    (problem,) = caught.value.problems
    assert reported in str(problem)
    assert problem.file == str(tmp_path / "net-b4.log")


@pytest.mark.parametrize(
    ("content", "reported"),
    [
        (b"", "is empty"),
        (b"\x7fELF\0\0\x01", "not a recording of a known format"),
        (b"once upon a time\n", "not a recording of a known format"),
        (b'{"traceEvents": []}\n', "not a recording of a known format"),
        (b'{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START"}\n\0\0', "is a binary file"),
    ],
)
def test_other_files_are_refused(tmp_path, content, reported):
    path = tmp_path / "file.log"
    path.write_bytes(content)
    with pytest.raises(InputError, match=reported):
        import_trace(path)


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(InputError, match="no such file or folder"):
        detect(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"known formats: TrioSim CSV .*; DTR log"):
        detect(tmp_path)


def small_log(path: Path) -> bytes:
    instructions = [
        {"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START"},
        {"INSTRUCTION": "CONSTANT", "NAME": "x"},
        {"INSTRUCTION": "MEMORY", "NAME": "x", "MEMORY": "64"},
        {"INSTRUCTION": "CALL", "NAME": "relu", "ARGS": ["x"], "RESULT": ["y"], "TIME": "5"},
        {"INSTRUCTION": "MEMORY", "NAME": "y", "MEMORY": "64"},
        {"INSTRUCTION": "ALIAS", "NAME": "y", "ALIAS": "-1"},
    ]
    text = "".join(json.dumps(line) + "\n" for line in instructions).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return text


def test_a_log_in_gzip_is_the_same_trace(tmp_path: Path) -> None:
    for name in ("net-b4.log", "net-b4.log.gz"):
        small_log(tmp_path / name)
    assert detect(tmp_path / "net-b4.log.gz").name == "DTR log"
    plain, zipped = (import_trace(tmp_path / name)[0] for name in ("net-b4.log", "net-b4.log.gz"))
    assert zipped == plain
    assert zipped.info.batch == 4


def test_damaged_gzip_log_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "net-b4.log.gz"
    small_log(path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match="the gzip file is cut off"):
        import_trace(path)


def test_a_log_in_gzip_counts_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net-b4.log.gz"
    lines = small_log(path)
    path.write_bytes(gzip.compress(lines + b"\n" * 10**6))
    free = 10**6 * MEMORY_FACTOR
    assert path.stat().st_size * MEMORY_FACTOR < free
    monkeypatch.setattr(free_memory, "available_memory", lambda: free)
    with pytest.raises(InputError, match="is larger than this machine's memory"):
        import_trace(path)


def test_guessed_batch_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "net-b4.log"
    small_log(path)
    assert "The batch of 4 is a guess from the file's name" in import_trace(path)[0].info.notes
    assert "guess" not in import_trace(path, ImportOptions(batch=8))[0].info.notes


POOLED = [
    START,
    *constant("w", 8),
    *constant("x", 16),
    *call("cudnn_convolution", ["x", "w"], ("y", 64, -1)),
    *call("max_pool2d_backward", ["y"], ("p", 16, -1), ("i", 32, -1)),
    *call("{follower}", ["p"], ("z", 16, -1)),
    line("ANNOTATE", ANNOTATION="BACKWARD"),
    *call("threshold_backward", ["z", "z"], ("gz", 16, -1)),
    *call("max_pool2d_with_indices_backward", ["gz", "y", "i"], ("gy", 64, -1)),
    *call("cudnn_convolution_backward", ["x", "gy", "w"], ("gw", 8, -1)),
]


def pooled(tmp_path: Path, follower: str) -> TaskGraph:
    trace, _ = import_trace(written(tmp_path, [text.replace("{follower}", follower) for text in POOLED]))
    return TaskGraph.of(trace)


def test_forward_pooling_and_its_consumers_can_be_recomputed(tmp_path: Path) -> None:
    """The log calls it max_pool2d_backward: it stands before BACKWARD and makes values and indices of one argument."""
    graph = pooled(tmp_path, "relu")
    ancestry = Ancestry(graph)
    assert [kernel.pure for kernel in graph.kernels] == [True] * 6
    assert {name: ancestry.why_not(graph.block(name)) for name in "ypiz"} == dict.fromkeys("ypiz")


def test_unknown_operators_cannot_be_recomputed(tmp_path: Path) -> None:
    """Of y (64 B), i (32 B) and z (16 B), which backward reads, z comes of an operator of unknown purity."""
    result = unrecomputable(pooled(tmp_path, "mine"))
    assert result == Unrecomputable(112, 16, (("mine", "purity unknown", 16),))
