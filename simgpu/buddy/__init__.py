"""Buddy Compression: memory-entries split between device memory and a larger, slower buddy memory over a link.

`targets` chooses how much device memory each allocation gets; `profile` tells what comes of it, of `snapshots` of
memory taken of arrays, files (`sources`, `stored`) or traces (`histograms`). Does not live here: bit-plane compression
(`simgpu.codecs`), or behaviour over time (`simgpu.machine`).

    from simgpu import buddy

    profile = buddy.profile_arrays([{"weights": weights, "relu1": relu1}])
    profile.targets
    profile.plot("heatmap")

Every name below loads its module when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simgpu.buddy.profile import BuddyProfile, profile_arrays, profile_files, profile_snapshots
    from simgpu.buddy.snapshots import Snapshots, take_snapshots
    from simgpu.buddy.sources import read_snapshots
    from simgpu.buddy.stored import load_entries, save_entries
    from simgpu.buddy.targets import Allocation, choose_targets

_HOMES = {
    "Allocation": "simgpu.buddy.targets",
    "BuddyProfile": "simgpu.buddy.profile",
    "Snapshots": "simgpu.buddy.snapshots",
    "choose_targets": "simgpu.buddy.targets",
    "load_entries": "simgpu.buddy.stored",
    "profile_arrays": "simgpu.buddy.profile",
    "profile_files": "simgpu.buddy.profile",
    "profile_snapshots": "simgpu.buddy.profile",
    "read_snapshots": "simgpu.buddy.sources",
    "save_entries": "simgpu.buddy.stored",
    "take_snapshots": "simgpu.buddy.snapshots",
}

__all__ = [
    "Allocation",
    "BuddyProfile",
    "Snapshots",
    "choose_targets",
    "load_entries",
    "profile_arrays",
    "profile_files",
    "profile_snapshots",
    "read_snapshots",
    "save_entries",
    "take_snapshots",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'simgpu.buddy' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
