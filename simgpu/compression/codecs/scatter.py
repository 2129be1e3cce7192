"""The scatter of codec times: how much repeated runs on the same tensor differ, measured on this machine's CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from time import perf_counter_ns

import numpy as np

from simgpu.compression.codecs.registry import make_codec

CODECS = ("zvc", "rle", "csr", "lz4")
#: Bytes and shares of zeros of the tensors, which are single precision with zeros at independent positions.
_SIZES, _SHARES = (2_000_000, 8_000_000, 20_000_000), (0.2, 0.5, 0.8)
#: First runs of each series, which allocate memory; not counted.
_WARM_UP = 2


def measured_scatter(
    codecs: Sequence[str] = CODECS,
    *,
    sizes: Sequence[int] = _SIZES,
    shares: Sequence[float] = _SHARES,
    repetitions: int = 10,
) -> float:
    """Standard deviation of the logarithm of a time: the median over all series of repeated encodings and decodings.

    codecs, sizes (bytes), shares (of zeros): one series for each combination and direction. repetitions: runs of a
    series, at least 2. Takes a minute by default. Raises `InputError` for an unknown codec.

    >>> 0 < measured_scatter(["zvc"], sizes=[4096], shares=[0.5], repetitions=3) < 10
    True
    """
    generator = np.random.default_rng(0)
    deviations = []
    for codec in map(make_codec, codecs):
        for size, share in product(sizes, shares):
            tensor = generator.random(size // 4, dtype=np.float32)
            tensor[generator.random(tensor.size) < share] = 0
            stream = codec.encode(tensor)
            deviations.append(_deviation(partial(codec.encode, tensor), repetitions))
            deviations.append(_deviation(partial(codec.decode, stream, tensor.dtype, tensor.shape), repetitions))
    return float(np.median(deviations))


def _deviation(run: Callable[[], object], repetitions: int) -> float:
    times = [_timed(run) for _ in range(_WARM_UP + repetitions)][_WARM_UP:]
    return float(np.std(np.log(times), ddof=1))


def _timed(run: Callable[[], object]) -> int:
    begin = perf_counter_ns()
    run()
    return max(perf_counter_ns() - begin, 1)
