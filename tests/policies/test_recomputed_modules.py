"""Modules recomputed by Megatron-LM's names: what each drops at the peak, when it runs again, and what is refused.

Peaks are those at the loss, where no copy of a recomputed part exists. A byte takes a nanosecond.
"""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.policies.common.recomputed_modules import RECOMPUTED
from simgpu.simulation.run import Result
from simgpu.trace.chain import chain
from simgpu.trace.model import BlockKind, Phase, Trace
from tests.policies.framework_runs import peak, run, used, work
from tests.workloads.configured.test_decoder_iteration import SMALL, built

DEPTH, TOKENS, HIDDEN, WIDTH = 2, 1024, SMALL["hidden_size"], SMALL["intermediate_size"]
EXPERTS, CHOSEN, EXPERT = 4, 2, 32
MIXTURE = {
    **SMALL,
    "model_type": "qwen2_moe",
    "num_key_value_heads": 4,
    "num_experts": EXPERTS,
    "num_experts_per_tok": CHOSEN,
    "moe_intermediate_size": EXPERT,
    "shared_expert_intermediate_size": EXPERT,
}
#: Bytes of a hidden state in bfloat16, and of a norm's or attention's statistics in float32 for each token.
STATE, ROW = 2 * TOKENS * HIDDEN, 4 * TOKENS


@cache
def decoder() -> Trace:
    """A decoder whose loss has the peak."""
    return built({**SMALL, "num_hidden_layers": DEPTH, "vocab_size": 5000}, TOKENS // 2).trace


@cache
def mixture() -> Trace:
    return built({**MIXTURE, "num_hidden_layers": DEPTH, "vocab_size": 5000}, TOKENS // 2).trace


def recomputed(trace: Trace, *modules: str, **parameters: object) -> Result:
    return run(trace, "checkpoint", modules=modules, early_stop=False, **parameters)


def dropped(trace: Trace, *modules: str) -> int:
    """By how much the peak is lower."""
    return peak(run(trace, "none")) - peak(recomputed(trace, *modules))


@pytest.mark.parametrize(
    ("modules", "bytes_of_a_layer"),
    [
        # The projection saves a copy of attention's result. The random state of cuDNN's is two numbers of 8 bytes.
        (["core_attn"], STATE + ROW * SMALL["num_attention_heads"] + 2 * 8),
        # Each of two norms saves its input in float32 and its result, which is scaled: the output, saved behind it. It
        # holds the input in bfloat16, which nothing else does.
        (["layernorm"], 2 * (2 * STATE + STATE + STATE + ROW - STATE)),
        # Results of both first products, of the activation, and of the multiplication.
        (["mlp"], 4 * 2 * TOKENS * WIDTH),
    ],
)
def test_a_module_of_each_layer_drops_what_it_saves(modules: list[str], bytes_of_a_layer: int) -> None:
    assert dropped(decoder(), *modules) == DEPTH * bytes_of_a_layer


@pytest.mark.parametrize(
    ("modules", "bytes_of_a_layer"),
    [
        # Of each expert's tokens, the activation's result and the product, which the last projection saves.
        (["moe_act"], 2 * 2 * CHOSEN * TOKENS * EXPERT),
        (["shared_experts"], 4 * 2 * TOKENS * EXPERT),
    ],
)
def test_a_module_of_a_mixture_drops_what_it_saves(modules: list[str], bytes_of_a_layer: int) -> None:
    assert dropped(mixture(), *modules) == DEPTH * bytes_of_a_layer


def test_modules_drop_as_much_together_as_alone() -> None:
    names = ("core_attn", "layernorm", "moe_act", "shared_experts")
    assert dropped(mixture(), *names) == sum(dropped(mixture(), name) for name in names)


def test_a_recomputed_mixture_drops_all_but_its_input() -> None:
    """The norm's output is held with and without, and what the residual sum adds is not saved."""
    trace = mixture()
    saved = {each.block for each in trace.saved if each.unpacked_before and ".mlp" in each.block}
    assert dropped(trace, "moe") == sum(
        b.bytes for b in trace.blocks if b.id in saved and b.kind is not BlockKind.WEIGHT
    )


def test_a_norm_runs_again_when_the_gradient_behind_attention_is_there_and_its_output_lives_to_its_own_end() -> None:
    trace = decoder()
    ran = work(recomputed(trace, "layernorm"))
    names = [name for name, _, _ in ran]
    norm = [k.id for k in trace.kernels if k.layer == "model.layers.1.input_layernorm" and k.phase is Phase.FORWARD]
    first = next(
        k.id for k in trace.kernels if k.layer == "model.layers.1.self_attn.o_proj" and k.phase is Phase.BACKWARD
    )
    place = names.index(first)
    assert names[place - len(norm) : place] == [f"again:{name}" for name in norm]
    cost = sum(k.duration_ns for k in trace.kernels if k.phase is Phase.FORWARD and "layernorm" in (k.layer or ""))
    assert recomputed(trace, "layernorm").iteration_ns == run(trace, "none").iteration_ns + cost


def test_an_output_is_discarded_when_attention_has_ended_and_there_again_during_its_backward() -> None:
    """Compared with the norms alone as sections, which keep their outputs until the projections have used them: less by
    a state for each norm whose hook module has ended, more by output and input until backward of a norm has ended."""
    trace = decoder()
    discards = recomputed(trace, "layernorm", blocks=["model.layers.0"])
    ran = {name: (start, end) for name, start, end in work(discards)}
    keeps = run(
        trace, "checkpoint", blocks=["model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"]
    )
    kept_ran = {name: (start, end) for name, start, end in work(keeps)}

    def less(kernel: str) -> int:
        return used(keeps, kept_ran[kernel][0]) - used(discards, ran[kernel][0])

    forward = [k.id for k in trace.kernels if k.phase is Phase.FORWARD]
    first, second = (
        next(n for n in forward if n.startswith(f"model.layers.0.{part}")) for part in ("self_attn", "mlp")
    )
    after = next(n for n in forward if n.startswith("model.layers.1.input_layernorm"))
    assert [less(kernel) for kernel in (first, second, after)] == [0, STATE, 2 * STATE]
    backward = [k for k in trace.kernels if k.phase is Phase.BACKWARD]
    ends = {k.layer: k.id for k in backward}
    of_mlp, of_attention = (ends[f"model.layers.0.{norm}"] for norm in ("post_attention_layernorm", "input_layernorm"))
    assert (less(of_mlp), less(of_attention)) == (STATE - 2 * STATE, -2 * STATE)


def test_an_mlp_that_runs_again_reads_the_output_that_was_discarded() -> None:
    """Nothing of a layer's second half is held but the residual sum; both run again, the norm first."""
    trace = decoder()
    names = [name for name, _, _ in work(recomputed(trace, "layernorm", "mlp", blocks=["model.layers.1"]))]
    again = [
        name.removeprefix("again:model.layers.1.").partition(".")[0] for name in names if name.startswith("again:")
    ]
    order = list(dict.fromkeys(part.partition(":")[0] for part in again))
    assert order == ["post_attention_layernorm", "mlp", "input_layernorm"]


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=30)
@given(data=st.data())
def test_any_modules_make_a_legal_program_that_takes_the_time_of_what_runs_again(data: st.DataObject) -> None:
    is_mixture = data.draw(st.booleans())
    trace, names = (mixture(), [n for n in RECOMPUTED if n != "mlp"]) if is_mixture else (decoder(), RECOMPUTED[:3])
    modules = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    if "moe" in modules:
        modules = [name for name in modules if name not in ("moe_act", "shared_experts")]
    result = recomputed(trace, *modules, inputs=data.draw(st.sampled_from(["resident", "waiting", "overlapped"])))
    again = sum(end - start for name, start, end in work(result) if name.startswith("again:"))
    assert result.steady and result.iteration_ns >= result.ideal_ns + again > result.ideal_ns


@pytest.mark.parametrize(
    ("modules", "messages"),
    [
        (["mla_up_proj"], ["'mla_up_proj' is of architectures that are not modelled; choose from core_attn"]),
        (["layer_norm", "core"], ["no module 'layer_norm' to recompute; did you mean 'layernorm'?", "'core'"]),
        (["moe", "moe_act"], ["'moe_act' lies in 'moe', which is recomputed as a whole; name one of them"]),
        (["moe_act", "mlp"], ["a module that is its moe_act; name others", "moe_act"]),
    ],
)
def test_modules_that_are_not_there_are_refused(modules: list[str], messages: list[str]) -> None:
    with pytest.raises(InputError) as raised:
        recomputed(decoder(), *modules)
    assert all(message in str(raised.value) for message in messages)


def test_modules_are_neither_joined_nor_of_networks_without_attention() -> None:
    with pytest.raises(InputError, match="group: 2 of core_attn, which do not follow one another"):
        recomputed(decoder(), "core_attn", group=2)
    with pytest.raises(InputError, match=r"modules: no layer of .* has a module that is its core_attn"):
        recomputed(chain([10] * 4, [10] * 4, [4] * 4), "core_attn", blocks=["L1"])


def test_an_output_that_others_read_later_cannot_be_discarded() -> None:
    """In Phi, attention and the MLP read the same norm, and Megatron-LM would discard it behind attention."""
    phi = built({**SMALL, "model_type": "phi", "num_key_value_heads": 4}, 32).trace
    with pytest.raises(InputError, match=r"the output of .*attn_norm is read by .*mlp.*, when it is discarded"):
        recomputed(phi, "layernorm")
