"""How many bytes went between device and host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Copied(NamedTuple):
    """Bytes copied from the device to the host, and back."""

    d2h_bytes: int
    h2d_bytes: int


@dataclass(slots=True)
class Tally:
    """Counts bytes as copies are asked for.

    >>> tally = Tally()
    >>> tally.d2h_bytes += 8
    >>> tally.take(), tally.take()
    (Copied(d2h_bytes=8, h2d_bytes=0), Copied(d2h_bytes=0, h2d_bytes=0))
    """

    d2h_bytes: int = 0
    h2d_bytes: int = 0

    def take(self) -> Copied:
        """What was counted since it was last asked."""
        taken = Copied(self.d2h_bytes, self.h2d_bytes)
        self.d2h_bytes = self.h2d_bytes = 0
        return taken
