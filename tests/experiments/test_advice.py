"""What is told where memory ran out: how much is needed at most and at least, and what is left to try."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simgpu.experiments.advice import advice
from simgpu.experiments.compare import compare
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.policies.registry import policy_names
from simgpu.scenario.load import make_scenario
from simgpu.scenario.model import PolicyChoice, Scenario
from simgpu.trace.chain import chain
from simgpu.trace.model import RELEASED_AT_END, Block, BlockKind, Trace

# Three layers whose maps have 100, 200 and 300 bytes: nothing moved is all of them, a kernel touches some of them.
# The framework let go of each after the iteration's last kernel.
_CHAIN = chain([5, 7, 9], [10, 14, 15], [100, 200, 300])
SMALL = replace(_CHAIN, blocks=tuple(replace(block, release=RELEASED_AT_END) for block in _CHAIN.blocks))


def scenario(budget: int, *policies: str, trace: Trace = SMALL, memory: int | None = None) -> Scenario:
    made = make_scenario({"trace": "resnet20-cifar-cpu", "node": "v100", "policies": "none"}, "a test")
    node = NodeSpec("bench", GpuSpec("a GPU", budget if memory is None else memory), LinkSpec("wire", 10**9, 10**9))
    return replace(
        made, trace=trace, node=node, budget=budget, policies=tuple(PolicyChoice(name, {}) for name in policies)
    )


def told(study: Scenario) -> list[tuple[str, str]]:
    return advice(study, compare(study))


def steps(study: Scenario) -> list[str]:
    return [text for name, text in told(study) if name == "to try"]


def needs(trace: Trace) -> tuple[int, int]:
    """Bytes that the run of none takes where there is enough, and those that any single kernel touches at most."""
    sizes = trace.block_by_id
    plenty = compare(scenario(10_000, "none", trace=trace)).results["none"]
    return plenty.high_water, max(sum(sizes[block].bytes for block in {*k.reads, *k.writes}) for k in trace.kernels)


def test_the_needs_are_those_that_runs_show() -> None:
    most, least = needs(SMALL)
    assert compare(scenario(most, "none")).results and not compare(scenario(most - 1, "none")).results
    (first, peak), (second, kernel), *_ = told(scenario(most - 1, "none"))
    assert (first, second) == ("nothing moved", "largest kernel")
    assert peak.startswith(f"{most} B at kernel ") and peak.endswith(f", of {most - 1} B there are")
    assert kernel.startswith(f"{least} B with all that it reads and writes: ")


def test_what_fits_is_named_and_the_fastest_of_several() -> None:
    most, _ = needs(SMALL)
    study = scenario(most - 1, "none", "vdnn")
    by_label = compare(study)
    assert list(by_label.results) == ["vdnn"]
    assert steps(study)[0] == "vdnn, which fits"
    both = replace(study, policies=(*study.policies, PolicyChoice("vdnn", {"mode": "dynamic"})))
    results = compare(both).results
    fastest = min(results, key=lambda label: results[label].iteration_ns)
    assert steps(both)[0] == f"{fastest}, which fits, the fastest here that does"


def test_policies_that_were_not_tried_and_parameters_that_can_be() -> None:
    most, _ = needs(SMALL)
    step = steps(scenario(most - 1, "none"))[0]
    assert step == f"another policy: {', '.join(name for name in policy_names() if name not in ('ideal', 'none'))}"
    weight = Block("w", 150, BlockKind.WEIGHT, persistent=True)
    reading = replace(SMALL.kernels[0], reads=(*SMALL.kernels[0].reads, "w"))
    with_weight = replace(SMALL, blocks=(*SMALL.blocks, weight), kernels=(reading, *SMALL.kernels[1:]))
    _, least = needs(with_weight)
    tight = scenario(least, "none", "vdnn", trace=with_weight)
    assert not compare(tight).results
    assert "other parameters of vdnn: simgpu policies vdnn" in steps(tight)


def test_a_kernel_too_large_alone_is_no_matter_of_policies() -> None:
    _, least = needs(SMALL)
    first, *_ = steps(scenario(least - 1, "none", "vdnn"))
    assert first == "more memory: no policy makes a single kernel smaller"


def test_a_budget_below_what_the_node_has() -> None:
    most, _ = needs(SMALL)
    larger = f"a larger budget: bench has {most} B, which hold it with nothing moved"
    assert larger in steps(scenario(most - 1, "none", memory=most))
    assert not [step for step in steps(scenario(most - 1, "none", memory=most - 1)) if step.startswith("a larger")]


@pytest.mark.parametrize(
    ("batch", "tool", "expected"),
    [
        (64, "simgpu zoo 1", "a smaller batch: simgpu zoo build net --batch 32, all else as before"),
        (64, "simgpu record 1", "a smaller batch: trace.at_batch(32) in Python, which models it"),
        (1, "simgpu zoo 1", None),
    ],
)
def test_a_smaller_batch_where_there_is_one(batch: int, tool: str, expected: str | None) -> None:
    trace = replace(SMALL, info=replace(SMALL.info, model="net", batch=batch, tool=tool))
    found = [step for step in steps(scenario(300, "none", trace=trace)) if step.startswith("a smaller batch")]
    assert found == ([] if expected is None else [expected])
