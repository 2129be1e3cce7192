"""What the name of a stream says.

Lives here: which streams compute, which copy, and in what order people see them. Does not live here: what a
stream does (that is in its spans).
"""

from __future__ import annotations

#: First parts of stream names, in the order in which streams are listed and drawn.
STREAM_ORDER = ("compute", "d2h", "h2d", "host")


def is_compute(stream: str) -> bool:
    """Whether kernels run on this stream.

    >>> is_compute("compute1"), is_compute("d2h")
    (True, False)
    """
    return stream.startswith("compute")


def track_order(stream: str) -> tuple[int, int, str]:
    """Sort key: compute streams, copy-out, copy-in, host, then what else there is; numbered ones by their number.

    >>> sorted(["host", "h2d", "compute10", "compute2", "compute"], key=track_order)
    ['compute', 'compute2', 'compute10', 'h2d', 'host']
    """
    rank = next((i for i, word in enumerate(STREAM_ORDER) if stream.startswith(word)), len(STREAM_ORDER))
    return rank, len(stream), stream
