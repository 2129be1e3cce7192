"""Offload of layers as in TransformerEngine and of modules as in Megatron-LM: by hand, and the memory that it saves."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.policies.common.layer_parts import MODULES
from simgpu.policies.offload_groups.groups import SavedGroup
from simgpu.policies.offload_groups.schedules import megatron, windows
from simgpu.simulation.run import Result
from simgpu.trace.chain import chain
from simgpu.trace.model import Phase, Trace
from tests.policies.framework_runs import parts, peak, run, used, work
from tests.semantics.random_traces import repeatable_traces
from tests.workloads.configured.test_decoder_iteration import SMALL, built

#: Four layers of 10 ns each way; the input of each is saved. A byte takes a nanosecond.
LAYERS = {"blocks": ["L1", "L2", "L3", "L4"], "min_elements": 1}
FOUR, SLOW = (chain([10] * 4, [10] * 4, [size] * 4) for size in (4, 16))
DEPTH, TOKENS, HIDDEN = 4, 2 * 512, SMALL["hidden_size"]
#: A mixture whose tokens go to two of four experts each.
EXPERTS, CHOSEN, WIDTH = 4, 2, 32
MIXTURE = {
    **SMALL,
    "model_type": "qwen2_moe",
    "num_key_value_heads": 4,
    "num_experts": EXPERTS,
    "num_experts_per_tok": CHOSEN,
    "moe_intermediate_size": WIDTH,
    "shared_expert_intermediate_size": WIDTH,
}
#: Bytes of a hidden state in bfloat16.
STATE = 2 * TOKENS * HIDDEN


def spans(trace: Trace, **parameters: object) -> dict[str, tuple[int, int]]:
    """Start and end of every kernel and copy."""
    ran = work(run(trace, "offload_groups", **LAYERS, **parameters))
    return {name.removesuffix(":saved"): times for name, *times in ran}


@cache
def decoder(micro_batches: int = 1) -> Trace:
    return built({**SMALL, "num_hidden_layers": DEPTH}, TOKENS // 2, micro_batches=micro_batches).trace


@cache
def mixture() -> Trace:
    return built({**MIXTURE, "num_hidden_layers": DEPTH}, TOKENS // 2).trace


def fast(policy: str, trace: Trace | None = None, **parameters: object) -> Result:
    """A run whose copies take no time worth mentioning."""
    return run(trace or decoder(), policy, bandwidth=10**15, **parameters)


# --- TransformerEngine -----------------------------------------------------------------------------------------


def test_a_layer_is_copied_as_it_saves_and_fetched_as_many_layers_ahead_as_stay():
    """Two of four layers: x1 and x2 leave; their fetches begin with B2 and B3, one layer behind which two stay."""
    ran = spans(FOUR, num_layers=2)
    assert (ran["out:x1"], ran["out:x2"]) == ([0, 4], [10, 14])
    assert (ran["in:x2"], ran["in:x1"]) == ([50, 54], [60, 64])
    assert run(FOUR, "offload_groups", **LAYERS, num_layers=2).iteration_ns == 80


def test_compute_waits_for_a_copy_before_the_layer_that_has_to_have_its_memory():
    """With three of four layers, x1 has to be gone when L2 begins, and is fetched when B1 begins."""
    ran = spans(SLOW, num_layers=3)
    assert [ran[f"F{n}"][0] for n in (1, 2, 3, 4)] == [0, 16, 32, 48]
    assert [ran[f"B{n}"][0] for n in (4, 3, 2, 1)] == [58, 68 + 16, 94 + 16, 120 + 16]


def test_version_1_spreads_its_layers_over_windows_and_copies_the_next_when_one_is_gone():
    """Windows of two layers: x1 leaves after F1, x2 after F2, when x1 is gone; both are fetched at a window's begin."""
    ran = spans(FOUR, num_layers=2, schedule="transformer_engine_v1")
    assert (ran["out:x1"], ran["out:x2"]) == ([10, 14], [20, 24])
    assert (ran["in:x2"], ran["in:x1"]) == ([40, 44], [60, 64])


def test_version_1_waits_for_whole_layers():
    """Three of four: layers 2, 3 and 4 of forward, and 3, 2 and 1 of backward, wait 16 ns for a copy from 10 on."""
    ran = spans(SLOW, num_layers=3, schedule="transformer_engine_v1")
    assert [ran[f"F{n}"][0] for n in (1, 2, 3, 4)] == [0, 10, 26, 42]
    assert [ran[f"B{n}"][0] for n in (4, 3, 2, 1)] == [58, 74, 90, 106]


@pytest.mark.parametrize(("layers", "count"), [(4, 3), (8, 3), (12, 5), (80, 79), (5, 1)])
def test_every_window_of_version_1_ends_after_its_layer_and_the_last_with_the_last_layer(layers: int, count: int):
    each = windows(layers, count)
    assert each == sorted(set(each)) and each[-1] == layers - 1
    assert all(window > n for n, window in enumerate(each))


@pytest.mark.parametrize("count", [1, 2])
def test_the_saved_tensors_of_as_many_layers_are_gone_at_the_peak(count: int):
    """The source's own claim: what is saved takes (L - n) * T for L layers of T each. Here T is 21 hidden states."""
    result = fast("offload_groups", num_layers=count, min_elements=TOKENS * HIDDEN)
    assert peak(fast("none")) - peak(result) == count * 21 * STATE
    assert result.metrics.copied_bytes == {"d2h": count * 21 * STATE, "h2d": count * 21 * STATE}


def test_double_buffering_holds_two_layers_all_the_time():
    """When forward ends, two layers have left, and their buffers are there: as much memory as without offload."""
    alone, both = (
        run(FOUR, "offload_groups", **LAYERS, num_layers=3, schedule="transformer_engine_v1", double_buffering=double)
        for double in (False, True)
    )
    assert [used(both, at) - used(alone, at) for at in (5, 25, 39)] == [8, 8, 8]
    assert both.iteration_ns == alone.iteration_ns


# --- Megatron-LM -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("modules", "states"),
    [
        # The projections of query, key and value save the same input three times.
        (["qkv_linear"], 3),
        (["core_attn"], 4),
        (["core_attn", "attn_proj"], 5),
        # A root mean square norm of Transformers saves its input in float32 twice, and its result in bfloat16.
        (["attn_norm"], 5),
        (["mlp_norm"], 5),
    ],
)
def test_all_layers_but_the_last_offload_what_their_modules_save(modules: list[str], states: int):
    result = fast("offload_groups", schedule="megatron", modules=modules, min_elements=TOKENS * HIDDEN)
    assert result.metrics.copied_bytes["d2h"] == (DEPTH - 1) * states * STATE


@pytest.mark.parametrize(
    ("modules", "wide"),
    # The first products of an expert save its input twice; the activation saves what it gets and its own result.
    [(["expert_fc1"], 2 * HIDDEN), (["moe_act"], 3 * WIDTH)],
)
def test_experts_of_all_layers_but_the_last_offload_what_they_save_of_the_tokens_that_they_get(
    modules: list[str], wide: int
):
    given_ = {"schedule": "megatron", "modules": modules, "min_elements": 1024}
    result = fast("offload_groups", mixture(), **given_)
    assert result.metrics.copied_bytes["d2h"] == (DEPTH - 1) * CHOSEN * TOKENS * wide * 2


def test_activations_of_experts_leave_when_the_last_product_of_all_experts_has_ended():
    names = [k.id for k in mixture().kernels if k.layer == "model.layers.0.mlp.experts.3.down_proj"]
    ran = work(run(mixture(), "offload_groups", schedule="megatron", modules=["moe_act"], min_elements=1024))
    copies = [start for name, start, _ in ran if name.startswith("out:model.layers.0.mlp.experts")]
    assert min(copies) == next(end for name, _, end in ran if name == names[0])


def groups(names: str, layers: int) -> list[SavedGroup]:
    """Groups of one kernel each, in forward from 0 on and in backward from 100 on."""
    every = len(names) * layers
    return [SavedGroup(names[n % len(names)], n, n, 99 + every - n, 99 + every - n, (n,)) for n in range(every)]


def test_a_group_is_fetched_one_layer_ahead_when_the_same_module_ends_there():
    listed = groups("ab", 3)
    schedules = megatron(listed, range(6), 1.0, -1)
    assert [each.group for each in schedules] == listed[:4]
    assert [each.fetched for each in schedules] == [listed[n + 2].end for n in range(4)]
    assert [each.arrived for each in schedules] == [each.group.begin - 1 for each in schedules]


def test_a_fraction_of_the_groups_keeps_the_last_ones_and_fetches_earlier():
    listed = groups("ab", 3)
    schedules = megatron(listed, range(6), 0.5, -1)
    assert [each.group for each in schedules] == listed[:2]
    assert [each.fetched for each in schedules] == [listed[4].end, listed[5].end]


def test_compute_waits_for_the_oldest_copies_of_a_module_beyond_those_under_way():
    listed = groups("ab", 4)
    awaited = [each.awaited for each in megatron(listed, range(8), 1.0, 1)]
    assert awaited == [2, 3, 4, 5, None, None]
    assert [each.awaited for each in megatron(listed, range(8), 1.0, 0)] == [0, 1, 2, 3, 4, 5]


def test_compute_never_waits_for_copies_to_the_host_unless_their_number_is_limited():
    """On a link that takes as long as all kernels, forward runs as without offload, and its memory is there longer."""

    def forward(**parameters: object) -> tuple[int, int]:
        result = run(decoder(), "offload_groups", bandwidth=10**9, schedule="megatron", **parameters)
        ends = [s.end_ns for s in result.timeline if s.iteration == 0 and s.name.endswith("nll_loss_forward")]
        return max(ends), peak(result)

    modules = {"modules": ["core_attn"], "min_elements": TOKENS * HIDDEN}
    (freely, more), (waiting, less) = forward(**modules), forward(**modules, max_inflight=0)
    assert freely < waiting and more > less


# --- both ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "messages"),
    [
        ({"num_layers": DEPTH}, ["4 of 4 layers; the last one is never offloaded; give 1 to 3"]),
        ({"num_layers": 0, "fraction": 0.5}, ["fraction: schedule transformer_engine has no", "num_layers: 0 is too"]),
        ({"schedule": "megatron"}, ["no module is named; name some of attn_norm"]),
        ({"schedule": "megatron", "modules": ["core_atn", "gdp_qkv"]}, ["did you mean 'core_attn'", "'gdp_qkv' is of"]),
        ({"schedule": "megatron", "modules": ["attn_proj"]}, ["'attn_proj' without 'core_attn'"]),
        ({"schedule": "megatron", "modules": ["attn_norm"], "fraction": 2.0}, ["fraction: 2.0 is no share"]),
    ],
)
def test_parameters_that_do_not_fit_are_refused_together(parameters: dict[str, object], messages: list[str]):
    with pytest.raises(InputError) as raised:
        fast("offload_groups", **parameters)
    assert all(message in str(raised.value) for message in messages)


@pytest.mark.parametrize(("count", "runs"), [(1, True), (2, True), (3, False), (5, False), (7, True)])
def test_double_buffering_is_refused_where_a_layer_would_come_into_a_buffer_in_use(count: int, runs: bool):
    """Version 1 fetches layer n where the window of its copy ended; with two buffers, layer n + 2 has to be done."""
    eight = chain([10] * 8, [10] * 8, [4] * 8)
    blocks = [f"L{number + 1}" for number in range(8)]
    given_ = {"blocks": blocks, "min_elements": 1, "schedule": "transformer_engine_v1", "double_buffering": True}
    try:
        assert run(eight, "offload_groups", num_layers=count, **given_).steady and runs
    except InputError as error:
        assert "have one buffer, and the first is fetched before the other has used it" in str(error)
        assert "give num_layers 1, 2 or 7" in str(error) and not runs


def test_a_network_without_attention_has_no_modules_to_offload():
    with pytest.raises(InputError, match=r"no layer of .* has a part that is its core_attn"):
        run(FOUR, "offload_groups", blocks=LAYERS["blocks"], schedule="megatron", modules=["core_attn"])


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=40)
@given(data=st.data())
def test_offload_of_any_layers_is_a_legal_program_that_ends(data: st.DataObject):
    lengths = data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=5))
    count = sum(lengths)
    numbers = st.lists(st.integers(1, 50), min_size=count, max_size=count)
    trace = parts(data.draw(numbers), data.draw(numbers), data.draw(numbers), lengths)
    version = data.draw(st.sampled_from(["transformer_engine", "transformer_engine_v1"]))
    given_ = {
        "blocks": list("abcde"[: len(lengths)]),
        "schedule": version,
        "num_layers": data.draw(st.integers(1, len(lengths) - 1)),
        "min_elements": 1,
        "double_buffering": version == "transformer_engine_v1" and data.draw(st.booleans()),
    }
    result = run(trace, "offload_groups", bandwidth=data.draw(st.sampled_from([10**8, 10**9, 10**12])), **given_)
    assert result.iteration_ns >= result.ideal_ns and result.steady
    assert result.metrics.copied_bytes["d2h"] == result.metrics.copied_bytes["h2d"]


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=40)
@given(data=st.data())
def test_layers_of_any_trace_are_offloaded_or_refused(data: st.DataObject):
    trace = data.draw(repeatable_traces())
    names = [kernel.layer for kernel in trace.kernels if kernel.phase is Phase.FORWARD]
    blocks = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    try:
        result = run(trace, "offload_groups", blocks=blocks, min_elements=1)
    except InputError as error:
        assert "the last one is never offloaded" in str(error) or "do not run one after the other" in str(error)
    else:
        assert result.iteration_ns >= result.ideal_ns and result.steady


@settings(deadline=None, max_examples=12)
@given(data=st.data())
def test_offload_of_any_modules_is_a_legal_program_that_ends(data: st.DataObject):
    is_mixture = data.draw(st.booleans())
    modules = data.draw(st.lists(st.sampled_from(MODULES if is_mixture else MODULES[:5]), min_size=1, unique=True))
    given_ = {
        "modules": [*modules, *(["core_attn"] if "core_attn" not in modules else [])],
        "fraction": data.draw(st.floats(0, 1)),
        "max_inflight": data.draw(st.integers(-1, 2)),
        "min_elements": data.draw(st.sampled_from([1, 1024, TOKENS * HIDDEN])),
    }
    bandwidth = data.draw(st.sampled_from([10**9, 10**10, 10**12]))
    trace = mixture() if is_mixture else decoder()
    result = run(trace, "offload_groups", bandwidth=bandwidth, schedule="megatron", **given_)
    assert result.iteration_ns >= result.ideal_ns and result.steady
