"""Modelled histograms of memory-entries for a trace's blocks.

A block gets the shares of its role at each epoch of the profile, in whole entries by largest remainder. Workspaces, and
blocks whose role no recording has, count as incompressible. What the profile tells is how small networks compress that
were really trained, on photographs and text, not the network of the trace: shares differ by layer and network more than
the mean of a role does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simgpu.trace.entries import ENTRY_BYTES, apportioned, entries_of, is_of_entries, rows_of
from simgpu.trace.model import CompressedSize, Origin, Trace
from simgpu.workloads.compressibility.profile import TRAINED, Profile, load_profile
from simgpu.workloads.compressibility.roles import roles_of

_WORD = "compressibility"


def with_compressibility(trace: Trace, profile: str | Profile | None = None) -> Trace:
    """The trace with modelled histograms of memory-entries in place of any it had; its notes say so.

    profile: name of a shipped profile, or one of your own; `TRAINED` where left out. There are rows for each of its
    epochs; other rows of compressibility stay. Raises `InputError` for an unknown profile.

    >>> from simgpu import load_trace
    >>> vgg = with_compressibility(load_trace("vgg16-b128-v100"))
    >>> rows = [row for row in vgg.compressibility if (row.block, row.epoch) == ("conv1_1", 0)]
    >>> sum(row.entries * row.entry_bytes for row in rows) == vgg.block_by_id["conv1_1"].bytes
    True
    """
    chosen = profile or TRAINED
    name, found = (chosen, load_profile(chosen)) if isinstance(chosen, str) else ("its own", chosen)
    fitted = f", fitted to {found.fitted_to}" if found.fitted_to else ""
    told = f"How compressible its memory is, entry by entry, is modelled (profile {name}{fitted})."
    info = replace(trace.info, notes=f"{trace.info.notes} {told}".strip(), modelled=_marked(trace))
    kept = tuple(row for row in trace.compressibility if not is_of_entries(row))
    return replace(trace, info=info, compressibility=(*kept, *_rows(trace, found)))


def _marked(trace: Trace) -> str:
    """What of the trace is modelled, now that this is; a modelled trace is so as a whole."""
    if trace.info.origin is Origin.MODELLED or _WORD in trace.info.modelled:
        return trace.info.modelled
    return " and ".join(filter(None, (trace.info.modelled, _WORD)))


def _rows(trace: Trace, profile: Profile) -> Iterator[CompressedSize]:
    roles = roles_of(trace)
    for block in trace.blocks:
        entries = entries_of(block)
        shares = profile.shares_of(roles[block.id]) if block.id in roles else None
        for place, epoch in enumerate(profile.epochs):
            histogram = {ENTRY_BYTES: entries}
            if shares is not None:
                histogram = dict(zip(profile.sizes, apportioned(shares[place], entries), strict=True))
            yield from rows_of(block.id, epoch, histogram)
