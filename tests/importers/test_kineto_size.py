"""Large PyTorch profiles: memory follows what is needed of them, not their size, and what cannot fit is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from simgpu.errors import InputError
from simgpu.importers import ImportOptions, import_trace, json_stream
from simgpu.importers.execution_trace import NODES
from simgpu.importers.kineto.profile import EVENTS
from simgpu.io import free_memory
from tests.importers.kineto_files import LINEAR, ExecutionTrace, Profile, small_run, tensor

#: What a profile is full of and an import drops.
NOISE = [
    {
        "ph": "X",
        "cat": "python_function",
        "name": "torch/nn/functional.py(1): relu",
        "pid": 1,
        "tid": 1,
        "ts": 1,
        "dur": 1,
    },
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaEventQuery", "pid": 1, "tid": 1, "ts": 1, "dur": 1},
    {"ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": 1, "cat": "ac2g", "name": "ac2g"},
    {
        "ph": "i",
        "cat": "cpu_instant_event",
        "name": "[memory]",
        "pid": 1,
        "tid": 1,
        "ts": 1,
        "args": {"Device Type": 0},
    },
]


def write_noisy(path: Path, repeated: int) -> Path:
    """The small profile behind many events that are dropped."""
    profile, _ = small_run()
    noise = ",".join(json.dumps(event) for event in NOISE)
    with path.open("w") as file:
        file.write(json.dumps(profile.head)[:-1] + ', "traceEvents": [')
        for _ in range(repeated):
            file.write(noise + ",")
        file.write(json.dumps(profile.events)[1:] + "}")
    return path


def peak_of_import(path: Path, reported: ImportOptions | None = None) -> int:
    tracemalloc.start()
    try:
        import_trace(path, reported)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_memory_does_not_grow_with_dropped_events(tmp_path):
    small = write_noisy(tmp_path / "small.json", 200)
    large = write_noisy(tmp_path / "large.json", 10_000)
    assert large.stat().st_size > 4_000_000 > 40 * small.stat().st_size
    assert import_trace(large)[0].kernels == import_trace(small)[0].kernels
    assert peak_of_import(large) < peak_of_import(small) + 100_000


@pytest.mark.slow
def test_process_memory_stays_small(tmp_path):
    """Peak resident memory of a program of its own, the JSON parser's buffers included."""
    program = (
        "import resource, sys\n"
        "from simgpu.importers import import_trace\n"
        "for path in sys.argv[1:]:\n"
        "    import_trace(path)\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)\n"
    )
    small, large = write_noisy(tmp_path / "small.json", 10), write_noisy(tmp_path / "large.json", 40_000)
    command = [sys.executable, "-c", program, str(small), str(large)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert large.stat().st_size > 16_000_000
    assert after - before < 4_000_000


def write_busy(path: Path, iterations: int) -> tuple[Path, Path, int, int]:
    """Many small operators with a kernel each, and their execution trace; how many events and nodes are needed."""
    profile, recorded = Profile(), ExecutionTrace()
    x, w = tensor(1, 2, 8, 4), tensor(3, 4, 4, 4)
    for number in range(iterations):
        at = 100 * number
        function = profile.op("aten::linear", at, 50, Input_Dims=[[8, 4], [4, 4]])
        profile.memory(at + 1, 4096 * (number + 1), 512, 512 * number)
        profile.kernel(at + 2, at + 3, 20)
        recorded.node("aten::linear", function, [x, w], [tensor(5 + 2 * number, 6 + 2 * number, 8, 4)], LINEAR)
    return profile.write(path / "busy.json"), recorded.write(path / "graph.json"), len(profile.events), iterations


@pytest.mark.slow
def test_memory_per_event_matches_the_constant(tmp_path):
    profile, recorded, events, nodes = write_busy(tmp_path, 800)
    peak_of_import(profile, ImportOptions(execution_trace=recorded))  # the first import fills caches
    alone = peak_of_import(profile)
    joined = peak_of_import(profile, ImportOptions(execution_trace=recorded))
    assert EVENTS.bytes / 2 < alone / events < EVENTS.bytes * 1.5
    assert NODES.bytes / 2 < (joined - alone) / nodes < NODES.bytes * 1.5


def test_a_profile_that_needs_more_memory_than_there_is(tmp_path, monkeypatch):
    profile, _, _, _ = write_busy(tmp_path, 100)
    monkeypatch.setattr(json_stream, "_LOOK_EVERY", 64)
    monkeypatch.setattr(free_memory, "available_memory", lambda: 100_000)
    what = r"busy.json: is larger than this machine's memory: 192 events needed so far, about 112.5 KiB, with 97.66"
    with pytest.raises(InputError, match=rf"{what} KiB free; record a single iteration \(schedule=.* more memory"):
        import_trace(profile)
    monkeypatch.setattr(free_memory, "available_memory", lambda: None)
    assert len(import_trace(profile)[0].kernels) == 100


def test_an_execution_trace_that_needs_more_memory_than_there_is(tmp_path, monkeypatch):
    profile, recorded, _, _ = write_busy(tmp_path, 100)
    monkeypatch.setattr(json_stream, "_LOOK_EVERY", 64)
    monkeypatch.setattr(free_memory, "available_memory", lambda: 80_000)
    what = r"graph.json: is larger than this machine's memory: 64 nodes needed so far, .*; let the observer run for"
    with pytest.raises(InputError, match=what) as error:
        import_trace(profile, ImportOptions(execution_trace=recorded))
    assert "schedule" not in str(error.value)


def test_the_memory_of_this_machine():
    free = free_memory.available_memory()
    assert free is None or 1 << 20 < free < 1 << 50
