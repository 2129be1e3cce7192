"""torchtitan's DeepSeek-V3 on one of 64 GPUs: its weights and products by closed forms, and what is covered."""

from __future__ import annotations

import pytest

from simgpu.validation.public.predicted import stored_predictions
from simgpu.validation.public.rows import published_rows
from simgpu.validation.public.selection import Reason, Subject, reasons
from simgpu.validation.public.times import compared_times, slowdowns, stored_times, timed_rows
from tests.validation.test_public_predictions import installed

ROWS = {row.id: row for row in published_rows()}
needs_torch = pytest.mark.skipif(not installed("torch"), reason="needs PyTorch")
#: By the word for it in a row's options, the number of a product in a layer with experts.
SAVED = [("gate",), ("gate", "wo"), ("gate", "wo", "wkv_a")]


def test_rows_of_torchtitan_are_covered_where_they_name_the_saved_operators() -> None:
    rows = [row for row in ROWS.values() if row.project == "torchtitan" and row.gpus == 1]
    covered = {row.id for row in rows if not reasons(row, Subject.TIME)}
    assert covered == {"t-039", "t-040", "t-041"} < {row.id for row in rows}
    assert covered == {row.id for row in rows if not reasons(row, Subject.MEMORY)}
    assert all(Reason.OPTION in reasons(row, subject) for row in rows for subject in Subject if row.id not in covered)


def test_saving_more_products_shortens_the_step_by_their_operations_at_a_likely_rate() -> None:
    """By hand: 61 products of 32,768 tokens, 16,384 x 7,168 and 7,168 x 576, at 60 to 100% of 2500 TFLOP/s."""
    steps = [stored_times()[name].step_ns * 1e-9 for name in ("t-039", "t-040", "t-041")]
    for one, other, weights in ((*steps[:2], 16384 * 7168), (*steps[1:], 7168 * 576)):
        assert 0.6 < 2 * 61 * 32768 * weights / 2500e12 / (one - other) < 1


def test_saved_products_take_the_memory_of_all_layers_but_that_of_the_peak() -> None:
    """By hand: wo's results in bfloat16, 32,768 x 7,168 in each of 60 layers; those of wkv_a, 32,768 x 576."""
    peaks = [stored_predictions()[name].allocated or 0 for name in ("t-039", "t-040", "t-041")]
    assert peaks[1] - peaks[0] == pytest.approx(60 * 2 * 32768 * 7168, rel=0.001)
    assert peaks[2] - peaks[1] == pytest.approx(60 * 2 * 32768 * 576, rel=0.001)


def test_slowdowns_of_saved_products_are_predicted_within_one_percent() -> None:
    errors = {each.row.id: each.error for each in slowdowns(compared_times(timed_rows(), stored_times()))}
    assert all(abs(errors[name]) < 0.01 for name in ("t-040", "t-041"))


@needs_torch
def test_the_weights_of_64_gpus_are_those_of_deepseek_v3() -> None:
    """671,026,419,200 with the 256 corrections of scores in each of 58 layers."""
    import torch

    from simgpu.validation.public.titan_experts import SIZES, ExpertsModel

    with torch.device("meta"):
        model = ExpertsModel(SIZES, 8, frozenset())
    of_all = sum(shape.numel() * (64 if parts == 4 else 1) for shape, parts in model.whole.values())
    corrections = sum(each.numel() for name, each in model.named_buffers() if name.endswith("correction"))
    assert corrections == 58 * 256 and of_all + corrections == 671_026_419_200
    assert sum(each.numel() for each in model.parameters()) == of_all // 256  # each weight divides evenly


@needs_torch
@pytest.mark.parametrize("saved", SAVED)
def test_a_step_has_the_products_of_the_closed_form(saved: tuple[str, ...]) -> None:
    """Forward, backward twice as many, and again those that are not saved, but for the last of each layer."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from simgpu.validation.public.titan_experts import ExpertSizes, ExpertsModel

    sizes = ExpertSizes(
        dense=2, layers=3, width=64, heads=4, queries=32, keys=16, plain=8, rotated=4, values=8, hidden=96, inner=24,
        words=80,
    )  # fmt: skip
    batch, length = 2, 16
    with torch.device("meta"):
        model = ExpertsModel(sizes, length, frozenset(saved))
        tokens = torch.zeros(batch, length, dtype=torch.int64)
        with FlopCounterMode(display=False) as counter:
            model(tokens, tokens)["loss"].backward()
    counts = {str(op): flops for op, flops in counter.get_flop_counts()["Global"].items()}

    w, i = sizes.width, sizes.inner
    attention = w * 32 + 32 * 4 * 12 + w * 20 + 16 * 4 * 16 + 4 * 8 * w
    kept = {"gate": 0, "wo": 5 * 4 * 8 * w, "wkv_a": 5 * w * 20}
    forward = 5 * attention + 2 * 3 * w * 96 + 3 * (w * 256 + 3 * w * i) + w * 80
    again = 5 * attention + 2 * 2 * w * 96 + 3 * 2 * w * i - sum(kept[word] for word in saved)
    assert counts["aten.mm"] == 2 * batch * length * (3 * forward + again)
    assert counts["aten.bmm"] == 2 * batch * length * sizes.chosen * 3 * 3 * w * i * (3 + 1)


@needs_torch
def test_each_of_four_experts_gets_a_quarter_of_the_sorted_rows() -> None:
    """By hand, row by row: the sum of its experts' results, each with the score of the row's token and expert."""
    import torch

    from simgpu.validation.public.titan_experts import ExpertSizes, _Experts

    sizes = ExpertSizes(
        dense=1, layers=1, width=32, heads=2, queries=16, keys=16, plain=8, rotated=4, values=8, hidden=48, inner=16,
        words=40,
    )  # fmt: skip
    torch.manual_seed(7)
    experts = _Experts(sizes).to_empty(device="cpu").to(torch.bfloat16)
    for each in experts.parameters():
        torch.nn.init.normal_(each, std=0.2)
    torch.nn.init.zeros_(experts.router.correction)
    x = torch.randn(1, 8, 32, dtype=torch.bfloat16)
    with torch.no_grad():
        scores, places = experts.router(x)
        routed = experts._routed(x[0], scores, places)
    order = torch.argsort(places.view(-1), stable=True)
    by_hand = torch.zeros(8, 32)
    for row, slot in enumerate(order.tolist()):
        expert, token = row // 16, slot // sizes.chosen  # 64 rows, 16 for each of four experts
        w1, w2, w3 = (each.detach()[expert] for each in (experts.w1, experts.w2, experts.w3))
        inner = torch.nn.functional.silu(w1 @ x[0, token]) * (w3 @ x[0, token])
        by_hand[token] += (w2 @ inner).float() * scores.view(-1)[slot]
    assert torch.allclose(routed.float(), by_hand, rtol=0.1, atol=0.1 * float(by_hand.abs().max()))
