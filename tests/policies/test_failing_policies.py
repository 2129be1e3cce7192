"""Policies whose code fails or whose programs are refused: one row gives the reason, and the others still run."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simgpu.errors import InputError, OutOfMemoryError, PolicyError, ProgramError, Terminated
from simgpu.experiments.compare import compare
from simgpu.experiments.max_batch import max_batch
from simgpu.policies.base import PlanContext, Policy
from simgpu.program.instructions import COMPUTE, Program, Segment
from simgpu.program.lowering import lower
from simgpu.program.paging import Paged
from simgpu.program.placement import Placement, Recompute, Swap
from simgpu.program.residency import on_demand
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain
from tests.cli.cli_helpers import make_study
from tests.policies.contract import PLENTY, node_of
from tests.policies.installed import command_with, write_distribution

TRACE = chain([5, 7, 9], [10, 14, 18], [100, 200, 300])
NODE = node_of(PLENTY)
HERE = Path(__file__).name


@dataclass(frozen=True)
class Planning(Policy):
    """Plans by the `plan` of the derived class."""

    name, summary, source = "outside", "what a test says", "a test"

    def plan(self, context: PlanContext) -> Program:
        return type(self).answer(context)  # type: ignore[attr-defined, no-any-return]


def outside(answer: Callable[[PlanContext], Any]) -> Policy:
    return type("Outside", (Planning,), {"answer": staticmethod(answer), "__module__": __name__})()


def swapping(*fields: Any, **more: Any) -> Policy:
    return outside(lambda context: lower(context.graph, Placement((Swap(*fields, **more),))))


def third_of_two(context: PlanContext) -> Program:
    return [Program(()), Program(())][2]


def untellable(context: PlanContext) -> Program:
    raise InputError("the batch is too small")  # type: ignore[arg-type]  # made of problems, not of a text


def lengthy(context: PlanContext) -> Program:
    raise ValueError("x" * 10**6)


def tried(context: PlanContext) -> Program:
    context.trial(None)  # type: ignore[arg-type]
    raise AssertionError("the trial has refused it")


UNLAUNCHED = Program((Segment({COMPUTE: ()}),))
#: How a policy fails: the first line of its error message, after file, line and name.
FAILING = {
    "none": (outside(lambda _: None), "None is not a Program: a plan must return one"),
    "placement": (
        outside(lambda _: Placement()),
        "a Placement is not a Program: return simgpu.program.lowering.lower(context.graph, placement)",
    ),
    "text": (outside(lambda _: "program"), "a str is not a Program: a plan must return one"),
    "index": (outside(third_of_two), "plan raised IndexError: list index out of range"),
    "silent": (outside(lambda _: (_ for _ in ()).throw(KeyError)), "plan raised KeyError"),
    "exit": (outside(lambda _: sys.exit(3)), "plan raised SystemExit: 3"),
    "no text": (outside(untellable), "plan raised InputError: (its text cannot be read)"),
    "long text": (outside(lengthy), f"plan raised ValueError: {'x' * 2000}..."),
    "trial": (outside(tried), "plan raised ProgramError: None is not a Program: a plan must return one"),
    "name": (
        swapping("x2", 1, 4, 3),
        "plan raised ProgramError: swaps[0]: block 'x2' is a str, not an int: "
        "graph.block('x2') gives the number of a block",
    ),
    "numpy": (
        swapping(np.int64(1), 1, 4, 3),
        "plan raised ProgramError: swaps[0]: block 1 is a numpy.int64, not an int: write int(...)",
    ),
    "negative": (
        swapping(1, 1, -2, 3),
        "plan raised ProgramError: swaps[0]: before -2 is out of range: the graph has 6 kernels, from 0",
    ),
    "late": (
        swapping(1, 1, 4, 6),
        "plan raised ProgramError: swaps[0]: fetch_with 6 is out of range: the graph has 6 kernels, from 0",
    ),
    "form": (
        swapping(1, 1, 4, 3, 1.5),
        "plan raised ProgramError: swaps[0]: form 1.5 is a float, not an int",
    ),
    "wrong kind": (
        outside(lambda context: lower(context.graph, Placement((Recompute(1, 1, 4),)))),  # type: ignore[arg-type]
        "plan raised ProgramError: swaps[0] is a Recompute, not a Swap",
    ),
    "one swap": (
        outside(lambda context: lower(context.graph, Placement(Swap(1, 1, 4, 3)))),  # type: ignore[arg-type]
        "plan raised ProgramError: swaps is a Swap, not a tuple",
    ),
}
every = pytest.mark.parametrize(("policy", "what"), FAILING.values(), ids=FAILING)


@every
def test_simulate_raises_one_error_with_file_line_and_policy(policy: Policy, what: str):
    with pytest.raises(PolicyError) as caught:
        simulate(TRACE, NODE, policy)
    (problem,) = caught.value.problems
    file, _, line = problem.file.rpartition(":")
    assert Path(file).name == HERE and line.isdigit()
    assert problem.place == "policy outside"
    assert problem.what == what


def test_the_line_is_the_policys_own_and_the_cause_is_what_was_raised():
    with pytest.raises(PolicyError) as caught:
        simulate(TRACE, NODE, FAILING["index"][0])
    assert isinstance(caught.value.__cause__, IndexError)
    line = third_of_two.__code__.co_firstlineno + 1
    assert caught.value.problems[0].file == f"{__file__}:{line}"


def test_a_program_that_verify_refuses_names_the_policy_and_the_instruction():
    with pytest.raises(PolicyError) as caught:
        simulate(TRACE, NODE, outside(lambda _: UNLAUNCHED))
    assert str(caught.value) == "policy outside: its program is refused: kernel F1 is never launched"
    assert isinstance(caught.value.__cause__, ProgramError)


def test_a_machine_that_is_no_node_is_an_error_of_the_policy():
    @dataclass(frozen=True)
    class Nowhere(Planning):
        name = "nowhere"

        def machine(self, node: Any) -> Any:
            return node.name

    with pytest.raises(PolicyError, match=f"{HERE}:.*policy nowhere: machine returns .*it must return a NodeSpec"):
        simulate(TRACE, NODE, Nowhere())


def test_failures_of_reclaim_and_fits_are_reported_too():
    """`reclaim`, called during the run, and `fits`, called by the search for the largest batch."""

    @dataclass(frozen=True)
    class Reclaiming(Policy):
        name, summary, source = "reclaiming", "pages that leave by a broken rule", "a test"

        def plan(self, context: PlanContext) -> Program:
            return on_demand(lower(context.graph, Placement()), Paged(page=128, chunk=128))

        def reclaim(self, residents: Any) -> Any:
            return 1 // 0

        def fits(self, context: PlanContext) -> bool | None:
            raise LookupError("no table")

    with pytest.raises(PolicyError, match="policy reclaiming: reclaim raised ZeroDivisionError"):
        simulate(TRACE, NODE, Reclaiming(), budget=512)
    run = next(iter(max_batch(TRACE, NODE, [Reclaiming(), "none"], limit=2))).run
    assert (run.failure, "fits raised LookupError: no table" in run.message) == ("error", True)


@pytest.mark.parametrize("answer", ["yes", 1])
def test_a_fits_answer_that_is_no_bool_gives_an_error_row(answer: Any):
    requested = outside(lambda context: lower(context.graph, Placement()))
    type(requested).fits = lambda self, context: answer  # type: ignore[assignment]
    run = next(iter(max_batch(TRACE, NODE, [requested, "none"], limit=2))).run
    assert (run.failure, f"fits says {answer!s}" in run.message.replace("'", "")) == ("error", True)


def test_reclaim_that_picks_no_chunk_is_refused():
    paging = outside(lambda context: on_demand(lower(context.graph, Placement()), Paged(page=128, chunk=128)))
    type(paging).reclaim = lambda self, residents: []  # type: ignore[assignment]
    with pytest.raises(PolicyError, match="reclaim picks a chunk that is not in device memory"):
        simulate(TRACE, NODE, paging, budget=512)


def test_a_plan_that_is_no_python_function_is_reported_without_a_line():
    called = outside(lambda _: None)
    type(called).plan = partialmethod(print, end="")  # type: ignore[assignment]
    with pytest.raises(PolicyError, match="policy outside: None is not a Program"):
        simulate(TRACE, NODE, called)


def test_a_termination_signal_is_not_reported_as_a_policy_error():
    def ended(_: PlanContext) -> Program:
        raise Terminated(143)

    with pytest.raises(Terminated):
        simulate(TRACE, NODE, outside(ended))


def test_input_errors_and_out_of_memory_are_not_policy_errors():
    def refuse(_: PlanContext) -> Program:
        raise InputError.single("", "parameters.count", "0 is too few", "give 1 or more")

    with pytest.raises(InputError) as refused:
        simulate(TRACE, NODE, outside(refuse))
    assert type(refused.value) is InputError
    with pytest.raises(OutOfMemoryError):
        simulate(TRACE, NODE, outside(lambda context: lower(context.graph, Placement())), budget=500)


def test_a_policy_error_can_be_pickled():
    error = PolicyError.of("outside", "plan raised KeyError", "outside.py:7")
    assert str(pickle.loads(pickle.dumps(error))) == "outside.py:7: policy outside: plan raised KeyError"


@every
def test_other_policies_have_results_if_one_fails(policy: Policy, what: str):
    runs = compare(TRACE, NODE, ["none", policy, "vdnn"])
    assert [run.failure for run in runs] == ["", "error", ""]
    assert what in runs["outside"].message and what in str(runs)
    assert runs.rows()[1][-1] == "error"
    assert what in runs.to_dict()[1]["error"]["message"]


def test_if_all_policies_fail_each_gives_its_reason():
    with pytest.raises(InputError) as caught:
        compare(TRACE, NODE, [FAILING["none"][0], FAILING["index"][0]])
    assert [problem.what for problem in caught.value.problems] == [FAILING["none"][1], FAILING["index"][1]]


MODULE = """
from dataclasses import dataclass
from simgpu.policies.base import Policy

@dataclass(frozen=True)
class It(Policy):
    name = 'failing'
    summary = source = 'fails'

    def plan(self, context):
        return [][0]
"""


@pytest.mark.slow
def test_the_command_line_shows_one_row_without_a_traceback(tmp_path: Path):
    site = write_distribution(tmp_path / "site", {"failing": "failing:It"}, {"failing": MODULE})
    study = str(make_study(tmp_path))
    why = f"{site / 'failing.py'}:11: policy failing: plan raised IndexError: list index out of range"
    for command in ("run", "compare"):
        done = command_with(site, arguments=[command, study, "--set", "policies=[none, failing]"], cwd=tmp_path)
        assert done.returncode == 0, "as another policy has a result"
        assert why in done.stderr.splitlines() and "Traceback" not in done.stderr
        alone = command_with(site, arguments=[command, study, "--set", "policies=[failing]"], cwd=tmp_path)
        assert (alone.returncode, alone.stderr.strip()) == (2, f"Error: {why}")
    shown = command_with(site, arguments=["compare", study, "--set", "policies=[none, failing]"], cwd=tmp_path)
    (row,) = (line for line in shown.stdout.splitlines() if line.startswith("failing"))
    assert row.split()[:2] == ["failing", "error"]
    arguments = ["run", study, "--json", "--set", "policies=[none, failing]"]
    document = json.loads(command_with(site, arguments=arguments, cwd=tmp_path).stdout)
    assert [entry.get("error", {}).get("message") for entry in document["results"]] == [None, why]
    written = command_with(
        site, arguments=["run", study, "-o", "out", "--set", "policies=[none, failing]"], cwd=tmp_path
    )
    assert written.returncode == 0, written.stderr
    page = command_with(site, arguments=["report", "out"], cwd=tmp_path)
    assert page.returncode == 0, page.stderr
