"""Identifiers of streams, and the names they are written as."""

from __future__ import annotations

import re
from typing import NamedTuple

from simgpu.hardware.spec import DEVICE, HOST

#: Roles of streams, in the order in which simultaneous events are executed; roles of other engines follow by name.
ROLES = ("compute", "data", "d2h", "h2d", "host", "collectives")

#: The engines between device and host have their usual short names.
_SHORT = {(DEVICE, HOST): "d2h", (HOST, DEVICE): "h2d"}
#: The engines of every GPU's own link.
OWN_ENGINES = tuple(_SHORT.values())
_ENGINE = re.compile(r"([a-z]{2,})2([a-z]{2,})")

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
        """Sort key: by GPU, then in the order of `ROLES`, other engines by name, then number."""
        place = ROLES.index(self.role) if self.role in ROLES else len(ROLES)
        return self.gpu, place, self.role, self.number


def engine(src: str, dst: str) -> str:
    """The name of the copy engine from one memory to another: the role of streams that use it.

    >>> engine("device", "host"), engine("host", "ssd")
    ('d2h', 'host2ssd')
    """
    return _SHORT.get((src, dst)) or f"{src}2{dst}"


def engine_ends(name: str) -> tuple[str, str] | None:
    """The memories that a copy engine copies from and to; None for a name that no engine has.

    >>> engine_ends("h2d"), engine_ends("ssd2host"), engine_ends("compute")
    (('host', 'device'), ('ssd', 'host'), None)
    """
    for ends, short in _SHORT.items():
        if name == short:
            return ends
    match = _ENGINE.fullmatch(name)
    if match is None:
        return None
    src, dst = match.groups()
    return None if src == dst or (src, dst) in _SHORT else (src, dst)


def engine_text(name: str) -> str:
    """A copy engine's name for people.

    >>> engine_text("d2h"), engine_text("host2ssd")
    ('D2H', 'host to ssd')
    """
    return name.upper() if name in OWN_ENGINES else " to ".join(engine_ends(name) or (name,))


def is_role(name: str) -> bool:
    """Whether a stream can have this role.

    >>> is_role("compute"), is_role("host2ssd"), is_role("device2host")
    (True, True, False)
    """
    return name in ROLES or engine_ends(name) is not None


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
