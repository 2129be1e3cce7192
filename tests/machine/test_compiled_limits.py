"""Numbers that pass 64 bits, and offsets that a pool does not have, leave a program to SimPy."""

from __future__ import annotations

import pytest

from simgpu.errors import OutOfMemoryError, ProgramError
from simgpu.hardware.nodes import load_node
from simgpu.machine.compiled_engine import Engine
from simgpu.machine.run import run_program
from simgpu.program.instructions import COMPUTE, HOST, Acquire, Launch, Release
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain
from tests.semantics.hand_made import block, graph, kernel, node, program

ENGINES = ("simpy", "compiled")


@pytest.mark.parametrize("budget", [2**63 - 1, 2**63, 2**64])
def test_a_huge_budget_runs_on_both_engines(budget: int) -> None:
    trace, v100 = chain([5, 7, 9], [10, 14, 18], [100, 200, 300]), load_node("v100")
    times = {simulate(trace, v100, "vdnn", budget=budget, engine=engine).iteration_ns for engine in ENGINES}  # type: ignore[arg-type]
    assert len(times) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_offsets_in_a_host_without_addresses_are_refused(engine: Engine) -> None:
    tasks = graph([kernel("k0", 5)], [block("a", 1, host_write="k0")])
    on_host = program({COMPUTE: (Launch(0), Acquire((0,), HOST, (0,)), Release((0,), HOST))})
    with pytest.raises(ProgramError, match="a program that gives offsets needs the addressed pool"):
        run_program(on_host, tasks, node(), budget=1000, pool="addressed", engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_offset_near_64_bits_is_out_of_memory(engine: Engine) -> None:
    tasks = graph([kernel("k0", 5, "", "a"), kernel("k1", 5, "a", "")], [block("a", 100)])
    far = program({COMPUTE: (Acquire((0,), offsets=(2**63 - 10,)), Launch(0), Launch(1), Release((0,)))})
    with pytest.raises(OutOfMemoryError):
        run_program(far, tasks, node(), budget=1000, pool="addressed", engine=engine)
