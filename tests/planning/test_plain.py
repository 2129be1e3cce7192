"""Plain Python evaluates vectors until loading the compiled functions has paid off."""

from __future__ import annotations

import pytest

from simgpu.graph.taskgraph import TaskGraph
from simgpu.planning import evaluator as evaluators
from simgpu.planning import plain
from simgpu.planning.evaluator import Evaluator
from simgpu.planning.options import Decisions
from simgpu.trace.chain import chain
from tests.semantics.hand_made import node

GRAPH = TaskGraph.of(chain([5, 7, 9, 9, 4], [10, 14, 18, 18, 9], [100, 200, 300, 400, 50]))


def test_few_vectors_are_evaluated_in_plain_python_and_many_by_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Compiled:
        """Stands for compiled functions that are not loaded."""

        def cache_info(self) -> object:
            return type("Info", (), {"currsize": 0})

        def __call__(self) -> evaluators.EvaluateAll:
            calls.append("compiled")
            return plain.evaluate_all

    monkeypatch.setattr(evaluators, "compiled_evaluate_all", Compiled())
    monkeypatch.setattr(plain, "_past", plain._Past())
    monkeypatch.setattr(plain, "is_cached", lambda module, function: False)
    evaluator = Evaluator(GRAPH, node(900), 900, Decisions.of(GRAPH))
    rows = plain._WORTH_COMPILING // (len(GRAPH.kernels) + 1)
    few = evaluator.costs([[0] * len(evaluator.decisions.maps)] * 10)
    assert calls == []
    monkeypatch.setattr(plain._past, "kernels", (rows - 1) * (len(GRAPH.kernels) + 1))
    evaluator.costs([[0] * len(evaluator.decisions.maps)])
    many = evaluator.costs([[0] * len(evaluator.decisions.maps)] * 10)
    assert calls == ["compiled"]
    assert few.time_ns.tolist() == many.time_ns.tolist()
