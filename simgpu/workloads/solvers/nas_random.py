"""The random numbers of the NAS Parallel Benchmarks: a linear congruential generator modulo 2**46.

x[k+1] = 5**13 x[k] mod 2**46, told as x / 2**46 in (0, 1): Bailey et al., The NAS Parallel Benchmarks, RNR-94-007,
section 2.3. Exact: 64-bit integers wrap at 2**64, which 2**46 divides.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MULTIPLIER = 5**13
_MODULUS = 2**46
_MASK = np.uint64(_MODULUS - 1)

Seeds = NDArray[np.uint64]


def power(exponent: int) -> int:
    """What takes a seed `exponent` numbers further.

    >>> power(3) == MULTIPLIER**3 % 2**46
    True
    """
    return pow(MULTIPLIER, exponent, _MODULUS)


def further(seeds: Seeds, factor: int) -> Seeds:
    """The seeds times a `power`."""
    return (seeds * np.uint64(factor)) & _MASK


def uniform(seeds: Seeds) -> NDArray[np.float64]:
    """The numbers that seeds stand for, in (0, 1)."""
    return seeds.astype(np.float64) * 2.0**-46


def sequence(seed: int, count: int, step: int = 1) -> Seeds:
    """The `count` seeds that follow `seed`, each `step` numbers after the one before; the first is `step` after it.

    >>> sequence(314159265, 3).tolist() == [314159265 * MULTIPLIER**k % 2**46 for k in (1, 2, 3)]
    True
    """
    result = np.empty(count, np.uint64)
    if count:
        result[0] = seed * power(step) % _MODULUS
    done = 1
    while done < count:
        take = min(done, count - done)
        result[done : done + take] = further(result[:take], power(step * done))
        done += take
    return result
