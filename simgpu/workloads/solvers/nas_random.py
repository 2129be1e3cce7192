"""The random numbers of the NAS Parallel Benchmarks: a linear congruential generator modulo 2**46.

x[k+1] = 5**13 x[k] mod 2**46, with the random number x / 2**46 in (0, 1): Bailey et al., The NAS Parallel Benchmarks,
RNR-94-007, section 2.3. The results are exact: 64-bit integers wrap at 2**64, a multiple of 2**46.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MULTIPLIER = 5**13
_MODULUS = 2**46
_MASK = np.uint64(_MODULUS - 1)

Seeds = NDArray[np.uint64]


def power(exponent: int) -> int:
    """The factor that advances a seed by `exponent` numbers.

    >>> power(3) == MULTIPLIER**3 % 2**46
    True
    """
    return pow(MULTIPLIER, exponent, _MODULUS)


def further(seeds: Seeds, factor: int) -> Seeds:
    """The seeds advanced by a factor from `power`."""
    return (seeds * np.uint64(factor)) & _MASK


def uniform(seeds: Seeds) -> NDArray[np.float64]:
    """The random numbers of seeds, in (0, 1)."""
    return seeds.astype(np.float64) * 2.0**-46


def sequence(seed: int, count: int, step: int = 1) -> Seeds:
    """The `count` seeds after `seed`, each advanced by `step` numbers from the previous one.

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
