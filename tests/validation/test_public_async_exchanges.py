"""Exchanges that overlap with products: their time in closed form, which products they pair with, and repetitions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simgpu.hardware.collectives import Collective, Group, collective_ns
from simgpu.hardware.nodes import load_node
from simgpu.trace.model import BlockKind, Kernel, Trace
from simgpu.validation.public.async_exchanges import SplitTime, once, overlapped_ns
from simgpu.validation.public.rows import published_rows
from tests.semantics.hand_made import block, held, kernel, trace
from tests.validation.test_public_predictions import installed
from tests.workloads.compiled.test_fused import OneByteANanosecond

NODE = load_node("h100-x8")
GATHER, SCATTER = "_c10d_functional::all_gather_into_tensor", "_c10d_functional::reduce_scatter_tensor"
#: Bytes of what is gathered or scattered, and the time of a product.
SIZE, PRODUCT = 2**31, 20_000_000
ROWS = {row.id: row for row in published_rows()}


def _in_two_streams(product: int, copy: int, parts: int) -> int:
    """`_pipelined_all_gather_and_consume`, event by event: copies exclude each other, and so do products."""
    streams, copies, products = [product, 0], 0, product
    for step in range(1, parts):
        stream = step % 2
        copies = max(streams[stream], copies) + copy
        products = max(copies, products) + product
        streams[stream] = products
    return products


@pytest.mark.parametrize("copy", [0, 10, 99, 100])
def test_copies_shorter_than_their_products_take_no_time(copy: int) -> None:
    assert overlapped_ns(8 * 100, 7 * copy, 8) == _in_two_streams(100, copy, 8) == 800


@pytest.mark.parametrize("copy", [101, 250, 1000])
def test_of_longer_copies_one_product_is_not_overlapped(copy: int) -> None:
    assert overlapped_ns(8 * 100, 7 * copy, 8) == _in_two_streams(100, copy, 8) == 100 + 7 * copy


def _step(layer: str = "layers.0") -> Trace:
    """A gathered tensor that three operators read; the scattered results of two products and of a sum."""

    def run(name: str, op: str, reads: str, writes: str) -> Kernel:
        return replace(kernel(name, PRODUCT, reads, writes, op=op), layer=layer)

    return trace(
        [
            run("gather", GATHER, "x", "all"),
            run("first_factor", "aten::mm", "all w", "a"),
            run("second_factor", "aten::mm", "g all", "b"),
            run("to_weight", "aten::mm", "all g", "dw"),
            run("scatter_first", SCATTER, "a", "s"),
            run("scatter_second", SCATTER, "b", "t"),
            run("add", "aten::add", "a b", "c"),
            run("scatter_sum", SCATTER, "c", "u"),
        ],
        [
            *(held(name, SIZE // 8, kind=BlockKind.INPUT) for name in "xg"),
            held("w", 1, kind=BlockKind.WEIGHT),
            *(block(name, SIZE) for name in ("all", "a", "b", "c")),
            *(block(name, SIZE // 8, release="end") for name in "stu"),
            block("dw", 1, kind=BlockKind.WEIGHT_GRADIENT, release="end"),
        ],
    )


def _times(built: Trace, *, overlapped: bool) -> list[int]:
    times = SplitTime(NODE, OneByteANanosecond(), 8, overlapped)
    return times.durations(built, [each.duration_ns for each in built.kernels])


def _alone(kind: Collective) -> int:
    return collective_ns(kind, SIZE, Group(8), NODE) + 2 * SIZE


def test_exchanges_alone_are_collectives_with_a_copy_of_the_whole() -> None:
    gather, scatter = _alone(Collective.ALL_GATHER), _alone(Collective.REDUCE_SCATTER)
    assert _times(_step(), overlapped=False) == [gather, *[PRODUCT] * 3, scatter, scatter, PRODUCT, scatter]


def test_a_pair_is_a_gather_with_the_products_of_its_result_or_a_product_with_its_scatter() -> None:
    """A gather copies its own part before, and the whole after if others read it. Neither a sum is a pair, nor a
    product that already has a gather."""
    assert NODE.peers is not None
    copies = round(SIZE * 7 / 8 * 1e9 / NODE.peers.bandwidth)
    overlapped = max(PRODUCT, PRODUCT // 8 + copies)
    gather, scatter = overlapped + 2 * SIZE // 8 + 2 * SIZE, overlapped + SIZE + SIZE // 8
    alone = _alone(Collective.REDUCE_SCATTER)
    assert _times(_step(), overlapped=True) == [gather, 0, 0, PRODUCT, alone, scatter, PRODUCT, alone]


def test_exchanges_outside_of_compiled_layers_do_not_overlap() -> None:
    assert _times(_step("output"), overlapped=True) == _times(_step("output"), overlapped=False)


def test_an_operator_that_repeats_another_on_the_same_values_counts_once() -> None:
    """The second conversion of x is dropped, not that of what has changed meanwhile, nor a product."""
    built = trace(
        [
            kernel("first", 1, "x", "a", op="aten::abs"),
            kernel("again", 1, "x", "b", op="aten::abs"),
            kernel("p", 1, "b", "c", op="aten::mm"),
            kernel("q", 1, "b", "d", op="aten::mm"),
            kernel("change", 1, "x", "x", op="aten::add_"),
            kernel("other", 1, "x", "e", op="aten::abs"),
        ],
        [held("x", 8, kind=BlockKind.INPUT), *(block(name, 8, release="end") for name in "abcde")],
    )
    left = once(built, lambda _: "all").kernels
    assert [each.id for each in left] == ["first", "p", "q", "change", "other"]
    assert left[1].reads == ("a",)
    assert once(built, lambda _: None).kernels == built.kernels


@pytest.mark.skipif(not installed("torch"), reason="needs PyTorch")
def test_eight_gpus_have_all_weights_of_llama_3_1_70b_and_each_the_same_norms() -> None:
    """70,553,706,496, as its model card has them."""
    import torch

    from simgpu.validation.public.titan_rows import SIZES, TitanModel

    sizes = SIZES["llama-3.1-70b"]
    with torch.device("meta"):
        model = TitanModel(sizes.split(8), 8192)
    norms = (2 * sizes.layers + 1) * sizes.width
    assert 8 * (sum(each.numel() for each in model.parameters()) - norms) + norms == 70_553_706_496


@pytest.mark.slow
@pytest.mark.skipif(not installed("torch", "2.13"), reason="predictions were made with PyTorch 2.13")
def test_one_gpu_of_eight_that_share_layers_comes_out_again() -> None:
    """And a step of four layers is what two and three of them say."""
    from simgpu.validation.public.several_times import predict_one_gpu, stored_times_of_several
    from simgpu.validation.public.titan_rows import SIZES, step_of_split

    row, stored = ROWS["t-022"], stored_times_of_several()["t-022"]
    assert predict_one_gpu(row).step_ns == pytest.approx(stored.step_ns, rel=0.001)
    sizes = SIZES["llama-3.1-70b"].split(8)
    two, three, four = (step_of_split(row, replace(sizes, layers=layers)) for layers in (2, 3, 4))
    assert four - three == pytest.approx(three - two, rel=0.001)
