"""The law of products of matrices: its limits, its invariants, and DeepBench's measurements, which judge it.

`deepbench.csv` has the products of DeepBench's training benchmark (baidu-research/DeepBench at da81ba7, Apache License
2.0, results/train): m, n, k, transposed operands, and microseconds with cuBLAS of CUDA 10.1 on a V100 of a DGX-1 and of
CUDA 8.0 on a P100, means of 400 kernels in a row. No parameter was fitted to them. They were known when the form of the
law was chosen, among others that differ little on them.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.hardware.nodes import load_node
from simgpu.workloads.timemodel.model import time_model
from simgpu.workloads.timemodel.operation import GemmShape, Operation, OperationKind
from simgpu.workloads.timemodel.parameters import load_parameters
from simgpu.workloads.timemodel.products import ProductRates, product_seconds

NODES = {"v100": "v100-sxm2-16gb", "p100": "p100"}
#: A V100's in single precision, about.
RATES = ProductRates(14e12, 700e9, 3.15e12, multiprocessors=80, itemsize=4, launch=4e-6)
SIDES = st.integers(1, 3000)


def work(m: int, n: int, k: int, dtype: str = "float32", count: int = 1) -> Operation:
    shape, itemsize = GemmShape(m, n, k, count), 4 if dtype == "float32" else 2
    moved = itemsize * count * (m * k + k * n + m * n)
    return Operation(OperationKind.GEMM, 2 * shape.macs, moved, count * m * n, gemm=shape, dtype=dtype)


@cache
def ratios(column: str) -> dict[GemmShape, list[float]]:
    """Modelled over measured time of each product; of both layouts, if both were measured."""
    board, _, dtype = column.partition("_")
    model = time_model(load_node(NODES[board]).gpu)
    result: dict[GemmShape, list[float]] = {}
    with Path(__file__).with_name("deepbench.csv").open() as file:
        for row in csv.DictReader(file):
            shape = GemmShape(int(row["m"]), int(row["n"]), int(row["k"]))
            modelled = model.duration_ns(work(shape.m, shape.n, shape.k, dtype))
            result.setdefault(shape, []).append(modelled / 1e3 / int(row[column]))
    return result


@pytest.mark.parametrize(
    ("column", "median_error", "least", "most"),
    [
        ("v100_float32", 0.13, 0.66, 1.27),
        ("v100_float16", 0.08, 0.48, 1.21),
        # cuBLAS 8.0 is slow with up to 16 columns and with sums of 500000 terms.
        ("p100_float32", 0.05, 0.16, 1.24),
    ],
)
def test_products_of_deepbench_take_about_the_measured_time(
    column: str, median_error: float, least: float, most: float
) -> None:
    """Bounds are the measured errors, rounded up."""
    every = [ratio for both in ratios(column).values() for ratio in both]
    assert len(every) == 160
    assert median(abs(ratio - 1) for ratio in every) < median_error
    assert least < min(every) < max(every) < most


@pytest.mark.parametrize(("column", "median_error"), [("v100_float32", 0.13), ("v100_float16", 0.13)])
def test_narrow_products_of_deepbench_take_about_the_measured_time(column: str, median_error: float) -> None:
    """With up to 64 columns or rows: recurrent layers at small batches, and classifiers."""
    narrow = [ratio for shape, both in ratios(column).items() if min(shape.m, shape.n) <= 64 for ratio in both]
    assert len(narrow) == 72
    assert median(abs(ratio - 1) for ratio in narrow) < median_error


def test_a_product_takes_the_time_of_the_fastest_tile() -> None:
    """By the formula in the module's docstring, where a second kernel takes too long for sums to be split."""
    rates, load = replace(RATES, launch=1.0), RATES.arithmetic / 2 * 4 / RATES.cache
    full = 1 + load / 256 + load / 128
    one = 2 * 8 * 8 * 4096 / (RATES.arithmetic / 80) * (1 + load / 8 + load / 8) / full * (1 + 1 / 80**2) ** 0.5
    assert product_seconds(GemmShape(8, 8, 4096), 0, rates) == pytest.approx(one)
    many = 2 * (80 * 256) ** 2 * 4096 / RATES.arithmetic
    assert product_seconds(GemmShape(80 * 256, 80 * 256, 4096), 0, rates) == pytest.approx(many, rel=1e-4)


def test_long_sums_are_split_where_tiles_are_few() -> None:
    """Into 128 parts for 80 multiprocessors; a second kernel starts, and the sums are written and read."""
    load = RATES.arithmetic / 2 * 4 / RATES.cache
    step = 2 * 64 * (1 + load / 4) / (1 + load / 256 + load / 128) / (RATES.arithmetic / 80)
    parts = step * 500_000 / 128 * (1 + (128 / 80) ** 2) ** 0.5 + RATES.launch
    assert product_seconds(GemmShape(8, 8, 500_000), 0, RATES) == pytest.approx(parts)
    assert product_seconds(GemmShape(8, 8, 500_000), 10**8, RATES) == pytest.approx(
        (10**8 + 2 * 4 * 64 * 128) / RATES.memory + RATES.launch, rel=0.05
    )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_classifier_of_two_labels_takes_microseconds(dtype: str) -> None:
    model = time_model(load_node("v100").gpu)
    parameters = load_parameters()
    filling = parameters.in_flight * 80 / (900e9 * parameters.architectures["volta"].memory * 0.9) * 1e9
    assert model.architecture.launch + filling < model.duration_ns(work(4, 2, 1024, dtype)) < 15_000


@pytest.mark.parametrize("grown", ["m", "n", "k", "count"])
@given(m=SIDES, n=SIDES, k=SIDES, count=st.integers(1, 64), more=st.integers(1, 3000))
def test_a_larger_product_never_takes_less_time(grown: str, m: int, n: int, k: int, count: int, more: int) -> None:
    shape = GemmShape(m, n, k, count)
    larger = replace(shape, **{grown: getattr(shape, grown) + more})
    assert product_seconds(shape, 0, RATES) <= product_seconds(larger, 0, RATES)


@given(m=SIDES, n=SIDES, k=SIDES, count=st.integers(1, 64))
def test_a_transposed_product_takes_the_same_time_and_none_exceeds_the_rate(m: int, n: int, k: int, count: int) -> None:
    seconds = product_seconds(GemmShape(m, n, k, count), 0, RATES)
    assert seconds == product_seconds(GemmShape(n, m, k, count), 0, RATES)
    assert seconds * RATES.arithmetic >= 2 * count * m * n * k * (1 - 1e-12)
