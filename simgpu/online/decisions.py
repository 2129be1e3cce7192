"""What a policy decides while an iteration runs: about blocks, by their positions in the graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from simgpu.hardware.spec import HOST
from simgpu.online.view import Flight, View


class Evict(NamedTuple):
    """Give up a block's device memory; copy it to the memory `to` before, unless its value is there already.

    To a memory behind the host it goes through the host, unless its value is there.
    """

    block: int
    to: str = HOST


class Drop(NamedTuple):
    """Give up a block's device memory and its value; its kernels run again when it is needed."""

    block: int


class Fetch(NamedTuple):
    """Copy a block back to device memory now, for a later use."""

    block: int


class Wait(NamedTuple):
    """Let the compute stream wait until a block's copy to another memory has ended, if one is under way."""

    block: int


Decision = Evict | Drop | Fetch | Wait


class Decider(Protocol):
    """Decides during one iteration. Calls come in the order of the clock."""

    def short(self, view: View, need: int) -> Iterable[Decision]:
        """Called when the next kernel, or a block that comes back, needs `need` more bytes than are free or leaving.

        It is called again until there is enough; nothing means that it knows no further block.
        """
        ...

    def before(self, view: View, kernel: int) -> Iterable[Decision]:
        """Called before each kernel of the trace, when all kernels before it have ended."""
        ...

    def ended(self, view: View, flight: Flight) -> Iterable[Decision]:
        """Called when a copy has ended."""
        ...

    def left(self, block: int) -> None:
        """A block has no value in device memory any more: it was evicted, dropped or freed."""
        ...

    def came(self, block: int) -> None:
        """A block has a value in device memory: it was made, recomputed or copied back."""
        ...
