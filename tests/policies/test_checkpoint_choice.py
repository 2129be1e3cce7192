"""`checkpoint` with some of the modules, with results kept, and without an early stop: by hand and by closed forms."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.trace.model import BlockKind, Trace
from tests.policies.framework_runs import parts, peak, run, run_again, used, work
from tests.semantics.hand_made import BACKWARD, block, held, kernel, trace

#: Modules a to d of two layers each, and e with one.
FIVE = parts([1] * 9, [1] * 9, [10] * 9, [2, 2, 2, 2, 1])


def layers_again(tasks: Trace, **parameters: object) -> list[str]:
    return run_again(run(tasks, "checkpoint", **parameters).program, tasks)


# --- which modules ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "again"),
    [
        ({"every": 2}, ["F5", "F1"]),  # Transformers, every_n_layers: a and c
        ({"first": 1, "every": 2}, ["F7", "F3"]),  # torchtitan, selective_ac_option 2: b and d
        ({"count": 2}, ["F3", "F1"]),  # Megatron-LM, block with 2 layers: a and b
        ({"group": 2}, ["F5", "F6", "F7", "F1", "F2", "F3"]),  # Megatron-LM, uniform with 2 layers
        ({"group": 3}, ["F7", "F1", "F2", "F3", "F4", "F5"]),
        ({"first": 1, "group": 2, "count": 2}, ["F3", "F4", "F5"]),
        ({"count": 0, "every": 1}, ["F7", "F5", "F3", "F1"]),
    ],
)
def test_some_of_the_modules_are_checkpointed(parameters: dict[str, int], again: list[str]) -> None:
    """A region runs again up to the last kernel before its last saved tensor, so that its last layer does not."""
    assert layers_again(FIVE, blocks=["a", "b", "c", "d"], **parameters) == again


def test_a_star_names_a_part_of_each_path():
    tagged = replace(
        FIVE, kernels=tuple(replace(k, layer=f"layers.{k.layer[0]}.{'attn' if k.layer[2] == '1' else 'mlp'}.{k.layer}")
                            for k in FIVE.kernels)
    )  # fmt: skip
    named = [
        section.name for section in run(tagged, "checkpoint", blocks=["layers.*"], early_stop=False).program.sections
    ]
    assert named == [f"layers.{name}" for name in "abcde"]
    assert layers_again(tagged, blocks=["layers.*.attn"], early_stop=False) == ["F9", "F7", "F5", "F3", "F1"]


def test_the_note_describes_the_choice():
    result = run(FIVE, "checkpoint", blocks=["a", "b", "c", "d"], every=2, count=2, group=2)
    (note,) = (note for note in result.notes if note.startswith("sections"))
    assert note.startswith("sections: 1, modules as named, every 2nd, at most 2, 2 together: a to c; each keeps")


# --- kept results -------------------------------------------------------------------------------------------


def block_of() -> Trace:
    """A module: a product, whose result nothing saves, a norm, a second product, and an activation."""
    return trace(
        [
            kernel("make", 1, "w", "x", layer="stem"),
            kernel("up", 10, "x", "p", layer="a.up", op="aten::mm"),
            kernel("norm", 2, "p", "n", layer="a.norm", op="aten::norm"),
            kernel("down", 20, "n", "q", layer="a.down", op="aten::mm"),
            kernel("act", 4, "q", "r", layer="a.act", op="aten::gelu"),
            kernel("head", 1, "r", "l", layer="head"),
            kernel("head-back", 1, "l r", "gr", layer="head", phase=BACKWARD),
            kernel("act-back", 1, "q gr", "gq", layer="a.act", phase=BACKWARD),
            kernel("down-back", 1, "n gq", "gn", layer="a.down", phase=BACKWARD),
            kernel("norm-back", 1, "gn", "gp", layer="a.norm", phase=BACKWARD),
            kernel("up-back", 1, "x gp", "gx", layer="a.up", phase=BACKWARD),
        ],
        [
            held("w", 0, kind=BlockKind.WEIGHT),
            block("x", 1, release="up-back"),
            block("p", 10, release="norm"),
            block("n", 100, release="down-back"),
            block("q", 1000, release="act-back"),
            block("r", 0, release="head-back"),
            *(block(name, 0) for name in ("l", "gr", "gq", "gn", "gp", "gx")),
        ],
    )


@pytest.mark.parametrize(
    ("keep", "again", "in_between"),
    [
        ([], ["up", "norm", "down"], 1),
        (["mm"], ["norm"], 1 + 10 + 1000),
        (["aten::mm"], ["norm"], 1 + 10 + 1000),
        (["mm/2"], ["norm", "down"], 1 + 10),
        (["*orm"], ["up", "down"], 1 + 100),
        (["mm", "norm"], [], 1 + 10 + 100 + 1000),
    ],
)
def test_kept_results_do_not_run_again_and_stay_on_the_device(
    keep: list[str], again: list[str], in_between: int
) -> None:
    """PyTorch runs `up` again although nothing needs it where the norm's result is kept."""
    tasks = block_of()
    result = run(tasks, "checkpoint", blocks=["a"], keep=keep)
    assert run_again(result.program, tasks) == again
    durations = {k.id: k.duration_ns for k in tasks.kernels}
    assert result.iteration_ns == result.ideal_ns + sum(durations[name] for name in again)
    start = next(start for name, start, _ in work(result) if name == "head")
    assert used(result, start) == in_between


def test_a_name_that_no_operator_has_is_noted() -> None:
    result = run(block_of(), "checkpoint", blocks=["a"], keep=["mm", "gelo", "torchtitan"])
    assert "keep: forward has no operator gelo" in result.notes


def test_a_kept_result_that_backward_does_not_need_is_dropped_by_the_rerun():
    """`p` goes when the norm has run again; n and q stay for the backward of down and act."""
    result = run(block_of(), "checkpoint", blocks=["a"], keep=["mm"])
    ends = {name: end for name, _, end in work(result)}
    assert used(result, ends["again:norm"] - 1) == 1 + 10 + 100 + 1000
    assert used(result, ends["again:norm"]) == 1 + 100 + 1000


def test_a_kept_result_behind_the_early_stop_is_held_with_the_inputs():
    """`r` is the module's output, that only the head saves; the rerun stops before it."""
    tasks = block_of()
    larger = tuple(replace(each, bytes=5) if each.id == "r" else each for each in tasks.blocks)
    tasks = replace(tasks, blocks=larger)
    result = run(tasks, "checkpoint", blocks=["a"], keep=["gelu"])
    starts = {name: start for name, start, _ in work(result)}
    assert used(result, starts["up-back"]) == 1 + 5
    stopping = run(tasks, "checkpoint", blocks=["a"])
    assert used(stopping, next(start for name, start, _ in work(stopping) if name == "up-back")) == 1


def test_results_changed_in_place_are_not_kept():
    tasks = block_of()
    kernels = tuple(replace(k, writes=("n",)) if k.id == "norm" else k for k in tasks.kernels)
    in_place = replace(kernels[2], id="scale", op="aten::mul_", reads=("n",), writes=("n",), layer="a.norm")
    tasks = replace(tasks, kernels=(*kernels[:3], in_place, *kernels[3:]))
    assert layers_again(tasks, blocks=["a"], keep=["norm"]) == ["up", "norm", "scale", "down"]


def test_the_note_counts_kept_results():
    result = run(block_of(), "checkpoint", blocks=["a"], keep=["mm"])
    assert "results kept in sections: 2 of aten::mm, 1010 B" in result.notes


def test_torchtitan_keeps_attention_and_every_second_product():
    """Of each region, products 1, 3 and so on; the count begins anew in each."""
    ops = ["mm", "mm", "_scaled_dot_product_flash_attention", "mm", "mul", "addmm", "mm"] * 2
    built = parts([1] * 14, [1] * 14, [10] * 14, [7, 7])
    of = {f"F{n}": f"aten::{op}" for n, op in enumerate(ops, start=1)}
    tasks = replace(built, kernels=tuple(replace(k, op=of.get(k.id, k.op)) for k in built.kernels))
    again = layers_again(tasks, blocks=["a", "b"], keep=["torchtitan"], early_stop=False)
    assert again == ["F9", "F12", "F14", "F2", "F5", "F7"]


# --- without an early stop -----------------------------------------------------------------------------------


def test_without_an_early_stop_a_region_runs_again_to_its_end():
    assert layers_again(FIVE, blocks=["a", "c"]) == ["F5", "F1"]
    assert layers_again(FIVE, blocks=["a", "c"], early_stop=False) == ["F5", "F6", "F1", "F2"]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_chains_add_the_time_of_all_layers_whose_results_are_not_kept(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    count = sum(lengths)
    numbers = st.lists(st.integers(1, 50), min_size=count, max_size=count)
    forward, backward, sizes = data.draw(numbers), data.draw(numbers), data.draw(numbers)
    ops = data.draw(st.lists(st.sampled_from(["mm", "gelu", "norm"]), min_size=count, max_size=count))
    keep = data.draw(st.lists(st.sampled_from(["mm", "gelu"]), unique=True))
    built = parts(forward, backward, sizes, lengths)
    of = {f"F{n}": op for n, op in enumerate(ops, start=1)}
    tasks = replace(built, kernels=tuple(replace(k, op=of.get(k.id, k.op)) for k in built.kernels))
    blocks = list("abcdefgh"[: len(lengths)])
    result = run(tasks, "checkpoint", blocks=blocks, keep=keep, early_stop=False)
    # The last layer writes no activation, and so has no result to keep.
    again = sum(ns for n, (ns, op) in enumerate(zip(forward, ops, strict=True)) if op not in keep or n == count - 1)
    assert result.iteration_ns == sum(forward) + sum(backward) + again
    assert result.iteration_ns >= run(tasks, "checkpoint", blocks=blocks, keep=keep).iteration_ns


def test_micro_batches_keep_and_choose_in_each():
    """`accumulate` runs the sections of each micro-batch again, by the same choice."""
    tasks = replace(FIVE, info=replace(FIVE.info, batch=2))
    inside = {"checkpoint": {"blocks": ["a", "b", "c", "d"], "every": 2}}
    result = run(tasks, "accumulate", micro_batches=2, inside=inside)
    plain = run(tasks, "accumulate", micro_batches=2, inside="none")
    again = [span.name.split("@")[0] for span in result.timeline if span.label == "recompute" and span.iteration == 1]
    assert again == ["F5", "F1"] * 2
    spans = [span for span in result.timeline if span.label == "recompute" and span.iteration == 1]
    assert result.iteration_ns == plain.iteration_ns + sum(span.end_ns - span.start_ns for span in spans)


# --- parameters ---------------------------------------------------------------------------------------------


def test_wrong_numbers_and_operators_are_reported():
    with pytest.raises(InputError) as caught:
        run(FIVE, "checkpoint", first=-1, every=0, count=-2, group=0)
    assert [p.place for p in caught.value.problems] == [f"parameters.{n}" for n in ("first", "every", "count", "group")]
    with pytest.raises(InputError, match="'mm/0' names no operators"):
        run(FIVE, "checkpoint", keep=["mm/0"])
    with pytest.raises(InputError, match=r"is 'z\.\*' or lies in it"):
        run(FIVE, "checkpoint", blocks=["z.*"])


def test_kept_results_save_time_for_memory():
    tasks = block_of()
    results = [run(tasks, "checkpoint", blocks=["a"], keep=keep) for keep in ([], ["mm/2"], ["mm"])]
    assert sorted((r.iteration_ns for r in results), reverse=True) == [r.iteration_ns for r in results]
    assert sorted(peak(r) for r in results) == [peak(r) for r in results]
