"""PyTorch's own solvers of its partitioner: which of their budgets fits, and what it costs.

``torch._functorch.config.activation_memory_budget`` is a part of what is saved without it, not a size: it says nothing
of the peak, which need not fall with it. torchtitan sets it in its mode ``memory_budget``.
"""

from __future__ import annotations

from collections.abc import Iterator

from simgpu.plans.candidate import plain_trail
from simgpu.plans.compiled.step import CompiledStep
from simgpu.plans.projections import Projection

SOLVERS = ("dp", "ilp")
BUDGETS = tuple(n / 10 for n in range(1, 10))
#: Fewer, for graphs whose splits take seconds each.
BUDGETS_OF_LARGE = (0.3, 0.6)


def own_solvers(step: CompiledStep, budget: int) -> list[Projection]:
    """For each solver its fastest budget whose peak is within `budget` bytes; where none is, that of the least peak."""
    result = []
    for solver in SOLVERS:
        tried = list(each_budget(step, solver))
        fitting = [each for each in tried if each.peak <= budget]
        best = min(fitting, key=lambda each: (each.time_ns or 0, each.peak)) if fitting else None
        least = min(tried, key=lambda each: each.peak)
        result.append(best or least._replace(time_ns=None))
    return result


def each_budget(step: CompiledStep, solver: str) -> Iterator[Projection]:
    """What a solver costs with each of some budgets."""
    for budget in BUDGETS:
        trace = step.iteration.planned(step.joint.by_solver(solver, budget)).trace
        peak = plain_trail(trace).peak
        setting = f"activation_memory_budget={budget}, activation_memory_budget_solver={solver!r}"
        yield Projection(
            "PyTorch",
            setting,
            peak,
            trace.compute_ns,
            "no budget in bytes, nothing of peaks in backward",
        )
