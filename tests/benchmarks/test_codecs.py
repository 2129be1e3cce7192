"""What ZVC costs on one core, as ratios to copying the same array with NumPy in the same run.

Run with ``pytest tests/benchmarks``. The array has 64 MiB of float32, 55% of them zero in random places, which is the
hardest order for a processor that guesses branches. Streams are whole: header and checksum are part of the figure. The
copy goes to memory that is there already; encoding and decoding ask for theirs. The floors are asked of the compiled
functions; their oracle in NumPy is reported too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np
import pytest

from simgpu.compression.codecs import zvc
from simgpu.compression.codecs.registry import make_codec
from tests.benchmarks.conftest import Report
from tests.compression.codecs import zvc_numpy

ELEMENTS = 2**24
ROUNDS = 9


@pytest.fixture(scope="module")
def activation() -> np.ndarray:
    random = np.random.default_rng(0)
    array = random.standard_normal(ELEMENTS, np.float32)
    array[random.random(ELEMENTS, np.float32) < 0.55] = 0
    return array


def over_copy(array: np.ndarray, work: Callable[[], object]) -> float:
    """Rate of the work over that of copying the array: medians, measured in turn so that both see the same machine."""
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
    return median(copy_ns) / median(work_ns)


def test_sizes_of_a_codec_are_fast(activation: np.ndarray, report: Report) -> None:
    codec = make_codec("zvc")
    ratio = over_copy(activation, lambda: codec.compressed_size(activation))
    report("ZVC size over copying", ratio, "floor 0.5", ratio >= 0.5)


@pytest.mark.parametrize("way", ["compiled", "NumPy's"])
def test_encode_and_decode(activation: np.ndarray, way: str, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = way == "compiled"
    if not compiled:
        monkeypatch.setattr(zvc, "_compiled", lambda: (zvc_numpy.write, zvc_numpy.read))
    codec = make_codec("zvc")
    stream = codec.encode(activation)
    for what, work in (
        ("encode", lambda: codec.encode(activation)),
        ("decode", lambda: codec.decode(stream, np.float32, activation.shape)),
    ):
        ratio = over_copy(activation, work)
        requested, met = ("floor 0.15", ratio >= 0.15) if compiled else ("", None)
        report(f"ZVC {what} over copying, {way}", ratio, requested, met)
