"""What counting memory-entries costs on one core, as ratios to copying the same array with NumPy in the same run.

Run with ``pytest tests/benchmarks``. Three arrays of 64 MiB: a feature map, float32 with 55% zeros in random places;
weights; noise. The rate in MB/s is printed next to each ratio: it is that of this machine at this moment, and
nothing is asked of it. The floor is asked of the compiled functions; their oracle in NumPy is reported too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from statistics import median

import numpy as np
import pytest

from simgpu.compression import codecs
from simgpu.compression.codecs.entries import ENTRY_SIZES, entry_bits, size_classes
from simgpu.compression.codecs.registry import make_codec
from tests.benchmarks.conftest import Report
from tests.compression.codecs import bpc_numpy

ELEMENTS = 2**24
ROUNDS = 7
RAW = ENTRY_SIZES.index(128)


def activation() -> np.ndarray:
    random = np.random.default_rng(0)
    array = random.standard_normal(ELEMENTS, np.float32)
    array[random.random(ELEMENTS, np.float32) < 0.55] = 0
    return array


def weights() -> np.ndarray:
    return np.random.default_rng(1).normal(0, 0.02, ELEMENTS).astype(np.float32)


def noise() -> np.ndarray:
    return np.random.default_rng(2).integers(0, 2**32, ELEMENTS, np.uint32).view(np.float32)


def rates(array: np.ndarray, work: Callable[[], object]) -> tuple[float, float]:
    """Rate of the work over that of copying the array, and its MB/s: medians, measured in turn."""
    target = np.zeros_like(array)
    work()  # what is compiled is compiled once
    work_ns, copy_ns = [], []
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        np.copyto(target, array)
        copied = time.perf_counter_ns()
        work()
        work_ns.append(time.perf_counter_ns() - copied)
        copy_ns.append(copied - begin)
    return median(copy_ns) / median(work_ns), array.nbytes * 1e3 / median(work_ns)


@pytest.mark.parametrize("content", [activation, weights, noise])
@pytest.mark.parametrize("way", ["compiled", "NumPy's"])
def test_sizes(content: Callable[[], np.ndarray], way: str, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    take(way, monkeypatch)
    array = content()
    ratio, megabytes = rates(array, lambda: entry_bits(array))
    name = content.__name__.replace("_", " ")
    requested, met = ("floor 0.1", ratio >= 0.1) if way == "compiled" else ("", None)
    report(f"BPC size over copying, {name}, {way} ({megabytes:.0f} MB/s)", ratio, requested, met)
    assert met is not False


@pytest.mark.parametrize("way", ["compiled", "NumPy's"])
def test_encode_and_decode(way: str, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    take(way, monkeypatch)
    array = activation()[: ELEMENTS // 8].astype(np.float16).astype(np.float32)  # most of its entries become smaller
    assert np.mean(size_classes(array) < RAW) > 0.9
    codec = make_codec("bpc")
    stream = codec.encode(array)
    for what, work in (
        ("encode", lambda: codec.encode(array)),
        ("decode", lambda: codec.decode(stream, np.float32, array.shape)),
    ):
        ratio, megabytes = rates(array, work)
        report(f"BPC {what} over copying, {way} ({megabytes:.0f} MB/s)", ratio, "", None)


def take(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes all that follows go that way."""
    if way == "NumPy's":
        import_module("simgpu.compression.codecs.bpc_code")  # imported when it is first used
        monkeypatch.setattr(codecs, "bpc_code", bpc_numpy)
