"""Identifiers of streams, and the names they are written as."""

from __future__ import annotations

import re
from typing import NamedTuple

#: Roles of streams, in the order in which simultaneous events are executed.
ROLES = ("compute", "data", "d2h", "h2d", "host")

_NAME = re.compile(r"(?:gpu(\d+)\.)?([a-z0-9]*[a-z])(\d*)")


class StreamId(NamedTuple):
    """A stream of one GPU: its role, and its number among the streams of that role.

    >>> str(StreamId(0, "compute")), str(StreamId(1, "compute", 2))
    ('compute', 'gpu1.compute2')
    >>> StreamId.of("gpu1.compute2")
    StreamId(gpu=1, role='compute', number=2)
    """

    gpu: int
    role: str
    number: int = 0

    def __str__(self) -> str:
        name = f"{self.role}{self.number or ''}"
        return name if self.gpu == 0 else f"gpu{self.gpu}.{name}"

    @classmethod
    def of(cls, name: str) -> StreamId:
        """The stream with that name; `ValueError` for any other text."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise ValueError(f"{name!r} is not the name of a stream, which is like 'compute', 'd2h' or 'gpu1.h2d'")
        gpu, role, number = match.groups()
        return cls(int(gpu or 0), role, int(number or 0))

    @property
    def rank(self) -> tuple[int, int, str, int]:
        """Sort key: by GPU, then compute, copies both ways, copy-out, copy-in, host, the rest, then number."""
        place = ROLES.index(self.role) if self.role in ROLES else len(ROLES)
        return self.gpu, place, self.role, self.number


def is_compute(stream: str) -> bool:
    """Whether kernels run on this stream.

    >>> is_compute("gpu1.compute1"), is_compute("d2h")
    (True, False)
    """
    return StreamId.of(stream).role == "compute"


def track_order(stream: str) -> tuple[int, int, str, int]:
    """Sort key of a stream's name, see `StreamId.rank`.

    >>> sorted(["host", "h2d", "compute10", "compute2", "compute"], key=track_order)
    ['compute', 'compute2', 'compute10', 'h2d', 'host']
    """
    return StreamId.of(stream).rank
