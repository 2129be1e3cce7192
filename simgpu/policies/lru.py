"""`lru`: evicts to the host what has not been used for longest, when memory is short; copies it back on demand."""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.online.view import Ints, View
from simgpu.policies.common.deciding import EvictingPolicy


@dataclass(frozen=True)
class Lru(EvictingPolicy):
    """Least recently used."""

    name = "lru"
    summary = "evicts what has not been used for longest, when memory is short; copies it back on demand"
    source = "the usual rule of caches; Belady, A study of replacement algorithms, 1966"

    def ranks(self, view: View, blocks: Ints) -> Ints:
        """The time of the last use."""
        return view.last_use_ns[blocks]
