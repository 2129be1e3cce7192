"""How long a copy takes when it has the link to itself.

Lives here: the closed form. Does not live here: sharing between copies (that is the machine's).
"""

from __future__ import annotations

NANO = 10**9


def stream_ns(size: int, bandwidth: int) -> int:
    """Nanoseconds for `size` bytes at `bandwidth` bytes per second, rounded up to a whole nanosecond.

    >>> stream_ns(11_700_000_000, 11_700_000_000), stream_ns(1, 3_000_000_000), stream_ns(0, 1)
    (1000000000, 1, 0)
    """
    return -(-size * NANO // bandwidth)


def copy_ns(size: int, bandwidth: int, latency_ns: int) -> int:
    """Nanoseconds from the start of a lone copy to its end: latency, then the bytes.

    >>> copy_ns(1000, 1_000_000_000, 350)
    1350
    """
    return latency_ns + stream_ns(size, bandwidth)
