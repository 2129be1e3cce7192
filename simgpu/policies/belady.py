"""`belady`: evicts what is needed last, when memory is short; knows the future."""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.online.view import Ints, View
from simgpu.policies.common.deciding import EvictingPolicy


@dataclass(frozen=True)
class Belady(EvictingPolicy):
    """Furthest next use."""

    name = "belady"
    clairvoyant = True
    summary = "evicts what is needed last, when memory is short; copies it back on demand; knows the future"
    source = "Belady, A study of replacement algorithms for a virtual-storage computer, IBM Systems Journal 1966"

    def ranks(self, view: View, blocks: Ints) -> Ints:
        """Less the next use."""
        return -view.next_uses(blocks)
