"""Plans that follow another policy's decisions: what they recompute and offload, what they say is lost."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache, partial

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")
pytest.importorskip("scipy", reason="SciPy is not installed: simgpu with its extra 'calibrate'")

from simgpu.errors import InputError, OutOfMemoryError
from simgpu.hardware.nodes import load_node
from simgpu.plans.candidate import Candidate
from simgpu.plans.checking import check_plan
from simgpu.plans.choices import Choices
from simgpu.plans.entry import plan
from simgpu.plans.following import Decided, candidate_of, decisions, lost
from simgpu.plans.regions import Steps
from simgpu.recorder import record
from simgpu.recorder.workload import find_factory
from simgpu.simulation.run import simulate
from simgpu.torch.plan import Plan

NODE = load_node("v100")
SIZE = {"tokens": 64, "layers": 2, "width": 64, "heads": 4, "vocabulary": 64}
GPT = partial(find_factory("gpt2-small"), **SIZE)
GELU, FC, QKV = "blocks.0.mlp.gelu:gelu", "blocks.0.mlp.fc:addmm", "blocks.0.attention.qkv:addmm"


@cache
def choices() -> Choices:
    return Choices(Steps(record(GPT, batch=16, gpu="v100")))


def decided(recomputed: Collection[str] = (), offloaded: Collection[str] = ()) -> Decided:
    place = choices().steps.block
    return Decided(frozenset(place[name] for name in recomputed), frozenset(place[name] for name in offloaded))


def does(candidate: Candidate) -> tuple[dict[str, set[str]], set[str]]:
    """Recomputed modules with the operators that run again, and offloaded blocks."""
    kernels = candidate.steps.trace.kernels
    reruns = zip(candidate.regions, candidate.planned.reruns, strict=True)
    return {each.region.module: {kernels[k].op for k in rerun} for each, rerun in reruns}, set(candidate.offloaded)


def test_a_module_is_recomputed_but_for_the_results_that_the_policy_keeps() -> None:
    chosen = decided(recomputed=[GELU])
    candidate = candidate_of(choices(), chosen)
    assert does(candidate) == ({"blocks.0.mlp": {"aten::gelu"}}, set())
    assert lost(candidate, chosen) == []


def test_all_saved_tensors_of_a_module_are_recomputed_if_the_policy_recomputes_all() -> None:
    candidate = candidate_of(choices(), decided(recomputed=[GELU, FC]))
    assert does(candidate) == ({"blocks.0.mlp": {"aten::addmm", "aten::gelu"}}, set())


def test_a_saved_tensor_is_offloaded_if_the_policy_offloads_it() -> None:
    chosen = decided(offloaded=[QKV])
    candidate = candidate_of(choices(), chosen)
    assert does(candidate) == ({}, {QKV})
    assert lost(candidate, chosen) == []


def test_a_block_that_no_module_can_drop_is_lost() -> None:
    chosen = decided(recomputed=[GELU], offloaded=[FC])
    candidate = candidate_of(choices(), chosen)
    assert does(candidate) == ({}, {FC})
    (line,) = lost(candidate, chosen)
    assert line.startswith("does not recompute 1 MiB of the 1 MiB")


@pytest.mark.parametrize(
    "policy", ["vdnn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("capuchin", "joint"))]
)
def test_a_plan_that_follows_a_policy_fits_and_trains_as_planned(policy: str) -> None:
    made = followed(policy, 0.75)
    assert made.policy == policy and made.predicted.peak_bytes <= made.budget_bytes
    assert made.recompute or made.offload
    assert made.notes[0].startswith(f"follows policy {policy}, whose own step takes")
    assert check_plan(made, GPT).passed


def followed(policy: str, part: float) -> Plan:
    """The plan of a policy, on this machine, for a part of the memory of the plain step."""
    trace = record(GPT, batch=16, repetitions=1, warmup=1)
    node = load_node("laptop-2gb")
    return plan(trace, node, int(Candidate(Steps(trace)).trail(node).peak * part), policy=policy)


def test_decisions_are_those_of_the_program() -> None:
    trace = choices().steps.trace
    result = simulate(trace, NODE, "vdnn")
    offloaded = {trace.blocks[b].id for b in decisions(result, trace).offloaded}
    copied = sum(trace.block_by_id[name].bytes for name in offloaded)
    assert copied == result.metrics.copied_bytes["d2h"] > 0
    assert decisions(result, trace).recomputed == frozenset()


@pytest.mark.parametrize("policy", ["checkpoint", "um", "ideal"])
def test_a_policy_that_does_more_than_place_blocks_is_refused(policy: str) -> None:
    with pytest.raises(InputError, match=f"{policy} does more than to keep, offload and recompute blocks"):
        plan(choices().steps.trace, NODE, policy=policy)


def test_a_policy_or_plan_that_does_not_fit_is_an_error() -> None:
    trace = choices().steps.trace
    peak = Candidate(choices().steps).trail(NODE).peak
    with pytest.raises(OutOfMemoryError):
        plan(trace, NODE, peak - 1, policy="none")
    with pytest.raises(InputError, match="as a plan, the decisions of capuchin need"):
        plan(trace, NODE, int(peak * 0.5), policy="capuchin", offload=False)
