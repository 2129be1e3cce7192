"""A simulated program with everything needed to run it again; read from a policy's folder or taken from a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from simgpu.errors import InputError, OutOfMemoryError, Problem, ProgramError
from simgpu.experiments.outputs import PROGRAM, REPORT, REPORT_SCHEMA, TASKS, folder_names
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.tasks_file import tasks_from_json
from simgpu.hardware.spec import Duplex, GpuSpec, HostSpec, LinkSpec, NodeSpec
from simgpu.io.input_files import JSON_LIMIT, read_json, read_text
from simgpu.machine.run import POOLS
from simgpu.program.instructions import Acquire, Copy, Program
from simgpu.program.paging import Paged
from simgpu.program.text import from_json
from simgpu.program.verify import verify
from simgpu.simulation.result import Result
from simgpu.trace.columns import BLOCKS, KERNELS, Table
from simgpu.trace.model import Origin, Trace, TraceInfo
from simgpu.trace.tables import read_table

Read = TypeVar("Read")

_GIVE = "give the folder of one policy that `simgpu run NAME -o DIR` wrote, such as DIR/vdnn"
_AGAIN = "run it again: `simgpu run NAME -o DIR`, with outputs.timeline: [csv] (the default)"
_OTHER = "choose another policy"


@dataclass(frozen=True)
class SimulatedProgram:
    """A program with the inputs of its simulation.

    program: without transforms; its indices refer to `graph`.
    graph: the tasks that ran.
    node: the simulated node, reduced to one GPU and its link.
    budget: bytes of device memory, None without limit.
    pool: ``counting`` or ``addressed``.
    iteration_ns: time of the reported iteration.
    title: policy, trace and node.
    """

    program: Program
    graph: TaskGraph
    node: NodeSpec
    budget: int | None
    pool: str
    iteration_ns: int
    title: str


def of_result(result: Result) -> SimulatedProgram:
    """Returns the program of a result. Raises `InputError` if no real device can run it."""
    node = result.node
    simulated_program = SimulatedProgram(
        replace(result.program, transforms=()),
        result.graph,
        node,
        None if result.program.unlimited_memory else result.budget,
        result.pool,
        result.iteration_ns,
        result.title,
    )
    _check_supported(
        simulated_program, result.title, compressing=node.gpu.cdma is not None or result.graph.compressed is not None
    )
    return simulated_program


def read_program(folder: str | Path) -> SimulatedProgram:
    """Reads the program in the folder of a policy.

    Raises `InputError` with everything missing or damaged, and if no real device can run the program.
    """
    home = Path(folder)
    entry = _entry(home)
    problems: list[Problem] = []

    def collected(read: Callable[[], Read]) -> Read | None:
        try:
            return read()
        except InputError as error:
            problems.extend(error.problems)
            return None

    trace = collected(lambda: _trace(home, entry))
    program = collected(lambda: _read_json(home / PROGRAM, from_json))
    graph = None
    if trace is not None:
        tasks = trace
        graph = collected(lambda: _read_json(home / TASKS, lambda text: tasks_from_json(text, tasks)))
    if program is None or graph is None:
        raise InputError(problems)
    gpu, label = entry["node"]["gpu"], entry["label"]
    simulated_program = SimulatedProgram(
        replace(program, transforms=()),
        graph,
        _node(entry["node"]),
        None if program.unlimited_memory else entry["budget_bytes"],
        entry["pool"],
        entry["metrics"]["iteration_ns"],
        f"{label}: {entry['trace']['name'] or entry['trace']['model']} on {entry['node']['name']}",
    )
    compressing = gpu.get("cdma") is not None or gpu.get("buddy") is not None
    _check_supported(simulated_program, str(home), compressing=compressing)
    try:
        verify(
            simulated_program.program,
            graph,
            capacity=simulated_program.budget,
            alignment=simulated_program.node.gpu.alignment,
        )
    except (ProgramError, OutOfMemoryError) as error:
        message = f"does not match {KERNELS.file}, {BLOCKS.file} and {TASKS}: {error}"
        raise InputError.single(home / PROGRAM, "", message, _AGAIN) from error
    return simulated_program


def _check_supported(simulated_program: SimulatedProgram, source: str, *, compressing: bool) -> None:
    """Raises `InputError` for features that a replay does not support."""
    program, graph = simulated_program.program, simulated_program.graph
    problems = []
    if program.gpus > 1:
        problems.append(f"uses {program.gpus} GPUs, but a replay runs on one device")
    if program.residency is not None:
        how = "paged on demand" if isinstance(program.residency, Paged) else "in host memory"
        problems.append(f"has its blocks {how}: the driver moves them, not the program")
    if compressing:
        problems.append(f"is for node {simulated_program.node.name} with compression hardware; no real device has it")
    copied = {
        (instruction.block, instruction.copied)
        for segment in program.segments
        for code in segment.streams.values()
        for instruction in code
        if isinstance(instruction, Copy)
    }
    larger = [
        b
        for b, retained in sorted(copied)
        if max(b, retained) < len(graph.sizes) and graph.copy_sizes[retained] > graph.sizes[b]
    ]
    if larger and not compressing:
        problems.append(f"copies more bytes of block {graph.blocks[larger[0]].id} than its size on the device")
    placed = any(
        isinstance(instruction, Acquire) and instruction.offsets is not None
        for segment in program.segments
        for code in segment.streams.values()
        for instruction in code
    )
    if placed and simulated_program.pool != "addressed":
        problems.append(f"places blocks at addresses, but its report has pool {simulated_program.pool}")
    if problems:
        raise InputError([Problem(source, "", message, _OTHER) for message in problems])


def _entry(home: Path) -> Mapping[str, Any]:
    """The policy's entry in the report in the parent folder."""
    if not home.is_dir():
        raise InputError.single(home, "", "is not a folder" if home.exists() else "no such folder", _GIVE)
    if (home / REPORT).exists():
        raise InputError.single(home, "", "is the folder of a run, not of one policy", _GIVE)
    path = home.resolve().parent / REPORT
    if not path.exists():
        raise InputError.single(home, "", f"has no {REPORT} in its parent folder: not written by a run", _GIVE)
    try:
        document = read_json(path, "the report of a run", _AGAIN)
        if document["schema"] != REPORT_SCHEMA:
            raise InputError.single(path, "schema", f"{document['schema']!r} is not {REPORT_SCHEMA!r}", _GIVE)
        results = document.get("results", ())
        names = folder_names(entry["label"] for entry in results)
        entry: Mapping[str, Any] = dict(zip(names, results, strict=True))[home.resolve().name]
    except KeyError as error:
        raise InputError.single(path, "", f"has no entry {error}", _GIVE) from None
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError.single(path, "", f"is not the report of a run: {error}", _AGAIN) from None
    invalid = [dotted for dotted, is_valid in _REQUIRED.items() if not is_valid(_at(entry, dotted))]
    if invalid:
        place = f"results, {home.resolve().name}"
        raise InputError([Problem(str(path), f"{place}: {name}", "is missing or damaged", _AGAIN) for name in invalid])
    return entry


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_positive(value: Any) -> bool:
    return type(value) is int and value > 0


#: The required values of a policy's entry in the report, with a check of each.
_REQUIRED: Mapping[str, Callable[[Any], bool]] = {
    "label": _is_text,
    "budget_bytes": _is_count,
    "metrics.iteration_ns": _is_count,
    "trace.model": _is_text,
    "trace.batch": _is_positive,
    "trace.name": _is_text,
    "node.name": _is_text,
    "node.gpu.name": _is_text,
    "node.gpu.memory": _is_positive,
    "node.gpu.copy_engines": _is_positive,
    "node.gpu.alignment": _is_positive,
    "node.link.kind": _is_text,
    "node.link.d2h_bandwidth": _is_positive,
    "node.link.h2d_bandwidth": _is_positive,
    "node.link.latency_ns": _is_count,
    "node.link.duplex": tuple(Duplex).__contains__,
    "node.host": lambda value: isinstance(value, dict),
    "node.host.pinned_memory": lambda value: value is None or _is_count(value),
    "pool": tuple(POOLS).__contains__,
}


def _at(entry: Any, dotted: str) -> Any:
    for key in dotted.split("."):
        entry = entry.get(key) if isinstance(entry, dict) else None
    return entry


def _node(text: Mapping[str, Any]) -> NodeSpec:
    gpu, link = text["gpu"], text["link"]
    return NodeSpec(
        text["name"],
        GpuSpec(gpu["name"], gpu["memory"], gpu["copy_engines"], gpu["alignment"]),
        LinkSpec(
            link["kind"], link["d2h_bandwidth"], link["h2d_bandwidth"], link["latency_ns"], Duplex(link["duplex"])
        ),
        HostSpec(pinned_memory=text["host"].get("pinned_memory")),
    )


def _trace(home: Path, entry: Mapping[str, Any]) -> Trace:
    """The kernels and blocks of the tables; raises `InputError` for duplicate names and names without a row."""
    missing = [name for name in (KERNELS.file, BLOCKS.file, TASKS, PROGRAM) if not (home / name).exists()]
    if missing:
        message = f"has no {', '.join(missing)}: written by an earlier version of simgpu or by another command"
        raise InputError.single(home, "", message, _AGAIN)
    kernels, blocks = read_table(home / KERNELS.file, KERNELS), read_table(home / BLOCKS.file, BLOCKS)
    problems = kernels.problems + blocks.problems
    if not problems:
        problems = [
            *_duplicates(home, KERNELS, kernels.rows, kernels.lines),
            *_duplicates(home, BLOCKS, blocks.rows, blocks.lines),
        ]
        known, ran = {block.id for block in blocks.rows}, {kernel.id for kernel in kernels.rows}
        for kernel, line in zip(kernels.rows, kernels.lines, strict=True):
            for name in dict.fromkeys((*kernel.reads, *kernel.writes)):
                if name not in known:
                    message = f"names block '{name}', which has no row in {BLOCKS.file}"
                    problems.append(Problem(str(home / KERNELS.file), f"row {line}", message, _AGAIN))
        for block, line in zip(blocks.rows, blocks.lines, strict=True):
            if block.host_write is not None and block.host_write not in ran:
                message = f"names kernel '{block.host_write}', which has no row in {KERNELS.file}"
                problems.append(Problem(str(home / BLOCKS.file), f"row {line}", message, _AGAIN))
    if problems:
        raise InputError(problems)
    text = entry["trace"]
    info = TraceInfo(text["model"], text["batch"], "", "", Origin.MODELLED, "simgpu run")
    return Trace(info, tuple(kernels.rows), tuple(blocks.rows), name=text["name"])


def _duplicates(home: Path, table: Table[Any], rows: list[Any], lines: list[int]) -> list[Problem]:
    seen: set[str] = set()
    result = []
    for row, line in zip(rows, lines, strict=True):
        if row.id in seen:
            result.append(Problem(str(home / table.file), f"row {line}", f"'{row.id}' is listed twice", _AGAIN))
        seen.add(row.id)
    return result


def _read_json(path: Path, parse: Callable[[str], Read]) -> Read:
    """The parsed content of a JSON file; its problems name the file."""
    try:
        return parse(read_text(path, "a JSON file that simgpu wrote", _AGAIN, JSON_LIMIT))
    except InputError as error:
        raise InputError(
            problem if problem.file == str(path) else replace(problem, file=str(path)) for problem in error.problems
        ) from error
