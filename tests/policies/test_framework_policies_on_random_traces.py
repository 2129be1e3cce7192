"""PyTorch's own policies on random traces: their programs are legal and run for any recording."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu.graph.taskgraph import TaskGraph
from simgpu.policies.registry import make_policy
from simgpu.program.verify import verify
from simgpu.trace.model import Phase, Trace
from tests.policies.contract import PLENTY, context_of
from tests.policies.framework_runs import run, run_again
from tests.semantics.random_traces import repeatable_traces, traces

FRAMEWORK_POLICIES = [
    ("checkpoint", st.builds(dict)),
    (
        "checkpoint",
        st.fixed_dictionaries(
            {
                "every": st.integers(1, 2),
                "group": st.integers(1, 2),
                "keep": st.sampled_from([(), ("*",), ("*/2",)]),
                "early_stop": st.booleans(),
            }
        ),
    ),
    ("save_on_cpu", st.builds(dict)),
    (
        "async_offload",
        st.fixed_dictionaries({"prefetch": st.integers(0, 3), "stash": st.integers(0, 3), "min_bytes": st.just(1)}),
    ),
    (
        "offload_activations",
        st.fixed_dictionaries(
            {
                "max_fwd_stash_size": st.integers(1, 6),
                "min_offload_size": st.just(1),
                "use_streams": st.booleans(),
                "saved_again": st.sampled_from(["resident", "offloaded"]),
            }
        ),
    ),
]


@pytest.mark.parametrize(("policy", "parameters"), FRAMEWORK_POLICIES, ids=[name for name, _ in FRAMEWORK_POLICIES])
@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=40)
@given(data=st.data())
def test_framework_policies_plan_legal_programs_that_end(policy: str, parameters: object, data: st.DataObject) -> None:
    trace: Trace = data.draw(traces(max_kernels=10))
    given_ = data.draw(parameters)  # type: ignore[arg-type]
    verify(make_policy(policy, given_).plan(context_of(trace, PLENTY)), TaskGraph.of(trace))
    result = run(trace, policy, **given_)
    assert result.iteration_ns >= result.ideal_ns and result.steady


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=50)
@given(data=st.data())
def test_checkpointing_any_sections_adds_the_time_of_recomputed_kernels(data: st.DataObject) -> None:
    """An iteration takes the sum of its kernels and its recomputed kernels."""
    trace: Trace = data.draw(repeatable_traces())
    count = sum(kernel.phase is Phase.FORWARD for kernel in trace.kernels)
    names = [f"L{n}" for n in range(count)]
    blocks = data.draw(st.one_of(st.integers(0, count), st.lists(st.sampled_from(names), min_size=1, unique=True)))
    how = {
        "blocks": blocks,
        "keep": data.draw(st.sampled_from([(), ("*",), ("*/2",)])),
        "early_stop": data.draw(st.booleans()),
    }
    verify(make_policy("checkpoint", how).plan(context_of(trace, PLENTY)), TaskGraph.of(trace))
    result = run(trace, "checkpoint", **how)
    again = run_again(result.program, trace)
    assert result.iteration_ns == result.ideal_ns + sum(k.duration_ns * again.count(k.id) for k in trace.kernels)
    assert result.steady
