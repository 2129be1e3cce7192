"""What `verify` says of waits for events of repeating segments is what happens."""

from __future__ import annotations

import pytest

from simgpu.errors import ProgramError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.machine.run import run_program
from simgpu.program.check import check_program
from simgpu.program.fast_walk import keeps_rules
from simgpu.program.instructions import (
    COMPUTE,
    D2H,
    DEVICE,
    HOST,
    Acquire,
    Await,
    Copy,
    Launch,
    Program,
    Release,
    Segment,
    Signal,
)
from simgpu.program.verify import verify, writes_of
from tests.semantics.hand_made import graph, held, kernel, node


def is_verified(program: Program, tasks: TaskGraph) -> bool:
    checked = check_program(program, tasks, node())
    fast = keeps_rules(checked, writes_of(checked))
    try:
        verify(program, tasks)
    except ProgramError:
        assert not fast
        return False
    assert fast
    return True


@pytest.mark.parametrize("repeat", [1, 2, 3, 10])
@pytest.mark.parametrize("lag", range(12))
def test_a_wait_for_a_later_segment_is_accepted_if_the_program_ends(repeat: int, lag: int) -> None:
    tasks = graph([kernel("k0", 5), kernel("k1", 7)], [held("a", 1)])
    waiting, signalling = (
        Segment({COMPUTE: (Await(0, lag), Launch(0))}),
        Segment({COMPUTE: (Signal(0), Launch(1))}, repeat),
    )
    program = Program((waiting, signalling))
    verified = is_verified(program, tasks)
    try:
        run_program(program, tasks, node(), budget=None, iterations=3)
        assert verified
    except ProgramError:
        assert not verified


@pytest.mark.parametrize("repeat", [1, 2, 3, 5])
def test_a_block_may_be_overwritten_after_all_copies_of_the_iteration_before(repeat: int) -> None:
    tasks = graph([kernel("k0", 5, "", "w"), kernel("k1", 7, "w", "")], [held("w", 100)])
    copied = Acquire((0,), HOST), Copy(0, DEVICE, HOST), Release((0,), HOST)

    def program(lag: int) -> Program:
        overwriting = Segment({COMPUTE: (Await(0, lag), Launch(0), Signal(1))})
        copying = Segment({COMPUTE: (Launch(1),), D2H: (Await(1), *copied, Signal(0))}, repeat)
        return Program((overwriting, copying), resident=(0,))

    assert [is_verified(program(lag), tasks) for lag in range(repeat, repeat + 2)] == [True, False]
