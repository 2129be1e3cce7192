"""Programs really run on the CPU build: threads for streams, real copies between real buffers."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

from simgpu.errors import InputError
from simgpu.experiments.compare import compare
from simgpu.experiments.outputs import write_outputs
from simgpu.hardware.spec import NodeSpec
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain
from simgpu.units import BYTE_UNITS, TIME_UNITS
from simgpu.validation.devices import open_device
from simgpu.validation.measured import Copies, MeasuredKind, MeasuredMachine
from simgpu.validation.replay.program import of_result, read_program
from simgpu.validation.replay.run import WARMUP, node_of, replay, replay_on
from simgpu.validation.timelines.comparison import Agreement
from tests.cli.cli_helpers import simgpu
from tests.semantics.hand_made import node as example_node

MS, MIB, GB = TIME_UNITS["ms"], BYTE_UNITS["MiB"], 10**9
#: Five layers of blocks that take the CPU about a millisecond to copy, and kernels that take longer.
TRACE = chain([3 * MS] * 5, [4 * MS] * 5, [4 * MIB] * 5)
#: As if it had been measured: what is held to it is the order, not the time.
MACHINE = MeasuredMachine(
    "an example CPU", "cpu", 2**34, 1, 2, Copies(4 * GB, 4 * GB, 4 * GB, 4 * GB, 5000, 9000), 1000, "", "2026-01-31"
)


def node(memory: int) -> NodeSpec:
    return example_node(memory, out=12 * GB, back=12 * GB)


@pytest.mark.parametrize(("policy", "budget"), [("none", 30), ("vdnn", 14), ("superneurons", 14), ("ideal", 14)])
def test_a_replay_has_the_simulated_order_bytes_and_peak(policy: str, budget: int):
    """Memory of these programs follows from their events alone, however long anything takes."""
    program = of_result(simulate(TRACE, node(budget * MIB), policy))
    device = open_device("cpu")
    try:
        with device.watch_copies() as copies:
            result = replay_on(program, device, MACHINE, repetitions=2)
    finally:
        device.close()
    assert result.comparison.streams
    assert all(row.agreement is Agreement.SAME for row in result.comparison.rows)
    assert (result.measured.d2h_bytes, result.measured.h2d_bytes) == (
        result.simulated.d2h_bytes,
        result.simulated.h2d_bytes,
    )
    assert result.measured.peak_bytes == result.simulated.peak_bytes
    assert result.measured.peak_bytes <= result.allocated_bytes <= result.limit_bytes
    iterations = WARMUP + 2 + 1
    seen = {kind: sum(copy.bytes for copy in copies if copy.kind is kind) for kind in MeasuredKind}
    assert seen[MeasuredKind.COPY_D2H] == iterations * result.simulated.d2h_bytes
    assert seen[MeasuredKind.COPY_H2D] == iterations * result.simulated.h2d_bytes
    assert len(result.measured.iterations_ns) == len(result.simulated.iterations_ns) == 2


def test_replayed_kernels_last_at_least_the_simulated_time_in_stream_order():
    """A busy loop may last longer on a machine that has other things to do, never shorter."""
    result = replay(of_result(simulate(TRACE, node(14 * MIB), "vdnn")), device="cpu", repetitions=1)
    for stream in result.comparison.streams.values():
        real = [row.measured for row in stream.rows if row.measured is not None]
        assert all(one.end_ns <= other.start_ns for one, other in pairwise(real))
    for row in result.comparison.streams["compute"].rows:
        assert row.measured is not None
        assert row.simulated is not None
        assert row.measured.end_ns - row.measured.start_ns >= row.simulated.end_ns - row.simulated.start_ns
    starts = {
        row.measured.name: row.measured.start_ns
        for row in result.comparison.streams["compute"].rows
        if row.measured is not None
    }
    ends = {
        row.measured.name: row.measured.end_ns
        for row in result.comparison.streams["h2d"].rows
        if row.measured is not None
    }
    assert ends["x1"] <= starts["B1"]
    assert result.machine.kind == "cpu"


def test_a_replayed_program_is_simulated_on_the_measured_link():
    program = of_result(simulate(TRACE, node(14 * MIB), "vdnn"))
    measured = node_of(program, MACHINE)
    assert (measured.link.d2h_bandwidth, measured.link.latency_ns, measured.gpu.memory) == (4 * GB, 5000, 14 * MIB)
    slow = Copies(MIB, MIB, MIB // 2, MIB // 2, 0, 0)
    assert node_of(program, MeasuredMachine("slow", "cpu", 1, 1, 1, slow, 0, "", "")).link.duplex.value == "half"


def test_a_program_larger_than_the_memory_is_refused_before_any_allocation():
    huge = chain([1], [1], [2**50])
    program = of_result(simulate(huge, node(2**51), "none"))
    with pytest.raises(InputError, match=r"memory: needs 1024 TiB as device memory .* but this machine has"):
        replay(program, device="cpu", repetitions=1)


def written(folder: Path) -> Path:
    result = compare(TRACE, node(14 * MIB), ["vdnn"])
    write_outputs(result, folder, about={}, timeline=["csv"])
    return folder / "vdnn"


def test_replay_prints_tables_and_writes_a_report(tmp_path: Path):
    home, file = written(tmp_path / "run"), tmp_path / "replay.json"
    done = simgpu("validate", "replay", home, "--device", "cpu", "--repetitions", "2", "-o", file, "-q")
    assert done.exit_code == 0, done.stderr
    for message in (
        "NOTE: ",
        "vdnn: chain on bench",
        "compared with",
        "peak memory",
        "equal",
        "d2h",
        "divergence",
    ):
        assert message in done.stdout
    assert max(len(line) for line in done.stdout.splitlines() if str(file) not in line) <= 80
    document = json.loads(file.read_text())
    assert document["schema"] == "simgpu.replay/2"
    assert document["measured"]["d2h_bytes"] == document["simulated"]["d2h_bytes"] == 4 * 4 * MIB
    assert document["measured"]["peak_bytes"] == document["simulated"]["peak_bytes"] == 8 * MIB
    assert document["program"]["iteration_ns"] == read_program(home).iteration_ns
    assert {place["agreement"] for stream in document["streams"].values() for place in stream["spans"]} == {"same"}


def test_replay_prints_json(tmp_path: Path):
    done = simgpu("validate", "replay", written(tmp_path / "run"), "--device", "cpu", "--repetitions", "1", "--json")
    assert done.exit_code == 0, done.stderr
    assert len(json.loads(done.stdout)["measured"]["iterations_ns"]) == 1


def test_replay_without_a_gpu_requires_device_cpu(tmp_path: Path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = simgpu("validate", "replay", written(tmp_path / "run"))
    assert done.exit_code == 2
    assert "'cuda': PyTorch sees 0 CUDA devices; give cpu, or an existing device" in done.stderr


def test_an_unwritable_output_is_refused_before_the_replay(tmp_path: Path):
    home = written(tmp_path / "run")
    for output, message in ((tmp_path, "is a folder"), (tmp_path / "none" / "x.json", "its folder does not exist")):
        done = simgpu("validate", "replay", home, "--device", "cpu", "-o", output)
        assert done.exit_code == 2
        assert message in done.stderr
