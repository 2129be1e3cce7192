"""Modelled histograms of memory-entries for a trace's blocks, from profiles of compressibility.

A profile has the shares of memory-entries of each size, by role of a block and epoch of training. A block gets the
shares of its role, in integer entries by largest remainder. Workspaces and roles that no recording has count as
incompressible. Profiles come from small networks trained on photographs and text, not from the network of the trace:
shares vary more by layer and network than the means of roles do.

Imports pydantic, so import it lazily.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simgpu.errors import InputError, did_you_mean
from simgpu.io.schema import FileModel, validate
from simgpu.io.yaml_files import read_yaml_mapping
from simgpu.trace.entries import ENTRY_BYTES, apportioned, entries_of, is_of_entries, rows_of
from simgpu.trace.model import CompressedSize, Origin, Trace
from simgpu.workloads.compressibility.roles import roles_of

_MODELLED = "compressibility"


def with_compressibility(trace: Trace, profile: str | CompressibilityProfile | None = None) -> Trace:
    """The trace with modelled histograms of memory-entries, which replace existing ones; its notes state this.

    profile: name of a shipped profile, or a profile; `TRAINED` by default. The result has rows for each of its epochs;
    other rows of compressibility do not change. Raises `InputError` for an unknown profile.

    >>> from simgpu import load_trace
    >>> vgg = with_compressibility(load_trace("vgg16-b128-v100"))
    >>> rows = [row for row in vgg.compressibility if (row.block, row.epoch) == ("conv1_1", 0)]
    >>> sum(row.entries * row.entry_bytes for row in rows) == vgg.block_by_id["conv1_1"].bytes
    True
    """
    chosen = profile or TRAINED
    name, result = (chosen, load_profile(chosen)) if isinstance(chosen, str) else ("its own", chosen)
    fitted = f", fitted to {result.fitted_to}" if result.fitted_to else ""
    description = f"The compressibility of memory-entries is modelled (profile {name}{fitted})."
    info = replace(trace.info, notes=f"{trace.info.notes} {description}".strip(), modelled=_marked(trace))
    others = tuple(row for row in trace.compressibility if not is_of_entries(row))
    return replace(trace, info=info, compressibility=(*others, *_rows(trace, result)))


def _marked(trace: Trace) -> str:
    """The modelled parts of the trace, with compressibility; unchanged for traces that are modelled entirely."""
    if trace.info.origin is Origin.MODELLED or _MODELLED in trace.info.modelled:
        return trace.info.modelled
    return " and ".join(filter(None, (trace.info.modelled, _MODELLED)))


def _rows(trace: Trace, profile: CompressibilityProfile) -> Iterator[CompressedSize]:
    roles = roles_of(trace)
    for block in trace.blocks:
        entries = entries_of(block)
        shares = profile.shares_of(roles[block.id]) if block.id in roles else None
        for place, epoch in enumerate(profile.epochs):
            histogram = {ENTRY_BYTES: entries}
            if shares is not None:
                histogram = dict(zip(profile.sizes, apportioned(shares[place], entries), strict=True))
            yield from rows_of(block.id, epoch, histogram)


SCHEMA = "simgpu.compressibility/2"
FOLDER = Path(__file__).with_name("profiles")

#: The default profile.
TRAINED = "trained"

#: Digits of the shares; their sum may differ from 1 by the rounding.
DIGITS = 4
#: Fewest parts of a role's prefix in a lookup: the kind alone is too general.
_LEAST_PARTS = 2

Share = Annotated[float, Field(ge=0, le=1)]
Row = Annotated[tuple[Share, ...], Field(strict=False)]
Text = Annotated[str, Field(min_length=1)]


class RoleShares(FileModel):
    """Compressibility of the blocks of one role."""

    recordings: tuple[Text, ...] = Field(default=(), strict=False, description="recordings that the shares average")
    shares: tuple[Row, ...] = Field(strict=False, description="for each epoch, the share of each size")


class CompressibilityProfile(FileModel):
    """Shares of entry sizes by role; `simgpu.workloads.compressibility.generator` describes their use."""

    schema_: Literal["simgpu.compressibility/2"] = Field(alias="schema")
    recordings: tuple[Text, ...] = Field(default=(), strict=False, description="traces that it was measured in")
    fitted_to: str = Field(default="", description="figures that it was fitted to, if not measured")
    epochs: tuple[Annotated[int, Field(ge=0)], ...] = Field(strict=False, min_length=1, description="ascending")
    sizes: tuple[Annotated[int, Field(ge=0)], ...] = Field(strict=False, min_length=1, description="bytes, ascending")
    roles: dict[Text, RoleShares]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if bool(self.recordings) == bool(self.fitted_to):
            raise ValueError("a profile is either measured or fitted: write one of recordings, fitted_to")
        for role, result in self.roles.items():
            if bool(result.recordings) != bool(self.recordings):
                raise ValueError(f"roles.{role}: must have recordings if and only if the profile has recordings")
        for name, numbers in (("epochs", self.epochs), ("sizes", self.sizes)):
            if any(later <= earlier for earlier, later in pairwise(numbers)):
                raise ValueError(f"{name}: {list(numbers)} must ascend without duplicates")
        for role, result in self.roles.items():
            if len(result.shares) != len(self.epochs):
                raise ValueError(
                    f"roles.{role}: {len(result.shares)} rows of shares are given for {len(self.epochs)} epochs"
                )
            for epoch, row in zip(self.epochs, result.shares, strict=True):
                place = f"roles.{role}, epoch {epoch}"
                if len(row) != len(self.sizes):
                    raise ValueError(f"{place}: {len(row)} shares are given for {len(self.sizes)} sizes")
                if abs(sum(row) - 1) > len(row) * 10**-DIGITS:
                    raise ValueError(f"{place}: the shares add up to {sum(row):.4g}, not to 1")
        return self

    def shares_of(self, role: str) -> tuple[tuple[float, ...], ...] | None:
        """The share of each size by epoch, of the role or its longest known prefix; None if neither is known.

        >>> profile = load_profile("trained")
        >>> profile.shares_of("activation.relu.something") == profile.shares_of("activation.relu")
        True
        >>> profile.shares_of("activation.something") is None
        True
        """
        parts = role.split(".")
        names = [".".join(parts[:count]) for count in range(len(parts), min(_LEAST_PARTS, len(parts)) - 1, -1)]
        return next((self.roles[name].shares for name in names if name in self.roles), None)


@cache
def load_profile(name: str, folder: Path = FOLDER) -> CompressibilityProfile:
    """A shipped profile by its name. Raises `InputError` for an unknown name or an invalid file.

    >>> load_profile("trained").sizes
    (0, 8, 16, 32, 64, 80, 96, 128)
    """
    path = folder / f"{name}.yaml"
    if not path.exists():
        raise InputError.single(
            "compressibility", "profile", f"unknown profile '{name}'", did_you_mean(name, profile_names())
        )
    document = read_yaml_mapping(path, SCHEMA)
    return validate(CompressibilityProfile, document.values, lambda place: (document.file, document.place(place)))


def profile_names() -> tuple[str, ...]:
    """Names of the shipped profiles.

    >>> TRAINED in profile_names()
    True
    """
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))
