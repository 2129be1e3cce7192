"""Orders by list scheduling, on an inception block of three branches."""

from __future__ import annotations

import numpy as np
import pytest

from simgpu.planning.listing import BY_PRIORITY, FRUGAL, NEWEST
from simgpu.planning.slot_planner import SlotPlanner
from tests.semantics.hand_made import block, graph, held, kernel, node

#: Each branch expands y to 300 bytes, and reduces these to 20; recorded layer by layer.
TASKS = graph(
    [
        kernel("S", 10, "x", "y"),
        *(kernel(f"E{n}", 10, "y", f"e{n}") for n in range(3)),
        *(kernel(f"R{n}", 10, f"e{n}", f"r{n}") for n in range(3)),
        kernel("J", 10, "r0 r1 r2", "z"),
    ],
    [
        held("x", 100),
        block("y", 100),
        *(block(f"e{n}", 300) for n in range(3)),
        *(block(f"r{n}", 20) for n in range(3)),
        block("z", 20),
    ],
)


@pytest.mark.parametrize(
    ("rule", "priorities", "expected"),
    [
        (BY_PRIORITY, range(8), "S E0 E1 E2 R0 R1 R2 J"),
        (BY_PRIORITY, [0, 3, 2, 1, 9, 9, 9, 0], "S E2 E1 E0 R2 R1 R0 J"),
        (NEWEST, range(8), "S E2 R2 E1 R1 E0 R0 J"),
        (FRUGAL, range(8), "S E0 R0 E1 R1 E2 R2 J"),
    ],
    ids=["as recorded", "by priority, of equal ones the first to be ready", "branch by branch", "least growth"],
)
def test_rules(rule: int, priorities: list[int], expected: str) -> None:
    """A reduction shrinks memory by 280 bytes, an expansion lets it grow by 300, or by 200 where it is y's last use."""
    planner = SlotPlanner(TASKS, node(), 1)
    order = planner.listed(rule, np.array(priorities, dtype=np.int64))
    assert [TASKS.kernels[k].id for k in order.tolist()] == expected.split()


def test_of_equal_growth_the_lower_priority_is_next() -> None:
    planner = SlotPlanner(TASKS, node(), 1)
    order = planner.listed(FRUGAL, np.array([0, 5, 4, 6, 1, 1, 1, 1]))
    assert [TASKS.kernels[k].id for k in order.tolist()] == ["S", "E1", "R1", "E0", "R0", "E2", "R2", "J"]


def test_growth_counts_new_blocks_and_those_used_last() -> None:
    """Q adds 20 bytes, S 110; then A adds 50, and B 80 less the 100 of c, which only B uses after S."""
    tasks = graph(
        [
            kernel("S", 10, "", "c d"),
            kernel("A", 10, "d", "a"),
            kernel("B", 10, "c", "b"),
            kernel("Q", 10, "", "q"),
            kernel("J", 10, "a b d q"),
        ],
        [block("c", 100), block("d", 10), block("a", 50), block("b", 80), block("q", 20)],
    )
    order = SlotPlanner(tasks, node(), 1).listed(FRUGAL, np.arange(5))
    assert [tasks.kernels[k].id for k in order.tolist()] == ["Q", "S", "B", "A", "J"]
