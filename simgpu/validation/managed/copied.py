"""How many bytes went between device and host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Copied(NamedTuple):
    """Bytes copied from the device to the host, and back."""

    bytes_out: int
    bytes_in: int


@dataclass(slots=True)
class Tally:
    """Counts bytes as copies are asked for.

    >>> tally = Tally()
    >>> tally.bytes_out += 8
    >>> tally.take(), tally.take()
    (Copied(bytes_out=8, bytes_in=0), Copied(bytes_out=0, bytes_in=0))
    """

    bytes_out: int = 0
    bytes_in: int = 0

    def take(self) -> Copied:
        """What was counted since it was last asked."""
        taken = Copied(self.bytes_out, self.bytes_in)
        self.bytes_out = self.bytes_in = 0
        return taken
