"""Profiles of compressibility: the share of a role's memory-entries that have each size, by epoch of training.

Imports pydantic, so it is imported when needed.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simgpu.errors import InputError, did_you_mean
from simgpu.io.schema import FileModel, validate
from simgpu.io.yaml_files import read_yaml_mapping

SCHEMA = "simgpu.compressibility/1"
FOLDER = Path(__file__).with_name("profiles")

#: The profile that is meant where none is named.
TRAINED = "trained"

#: Shares are written in so many digits, so that their sum may miss 1 by as much as they were rounded.
DIGITS = 4
#: A role is looked for by its beginnings of this many parts and more: a kind alone tells too little.
_LEAST_PARTS = 2

Share = Annotated[float, Field(ge=0, le=1)]
Row = Annotated[tuple[Share, ...], Field(strict=False)]
Text = Annotated[str, Field(min_length=1)]


class RoleShares(FileModel):
    """How compressible blocks of one role are."""

    recordings: tuple[Text, ...] = Field(default=(), strict=False, description="of which this is the mean")
    shares: tuple[Row, ...] = Field(strict=False, description="for each epoch, the share of each size")


class Profile(FileModel):
    """Shares of entry sizes by role; see `simgpu.workloads.compressibility.generator` for how they are used."""

    schema_: Literal["simgpu.compressibility/1"] = Field(alias="schema")
    recordings: tuple[Text, ...] = Field(default=(), strict=False, description="traces that it was measured in")
    fitted_to: str = Field(default="", description="of one that was not measured: what it was fitted to")
    epochs: tuple[Annotated[int, Field(ge=0)], ...] = Field(strict=False, min_length=1, description="ascending")
    sizes: tuple[Annotated[int, Field(ge=0)], ...] = Field(strict=False, min_length=1, description="bytes, ascending")
    roles: dict[Text, RoleShares]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if bool(self.recordings) == bool(self.fitted_to):
            raise ValueError("a profile is of recordings or is fitted to something: write one of recordings, fitted_to")
        for role, found in self.roles.items():
            if bool(found.recordings) != bool(self.recordings):
                raise ValueError(f"roles.{role}: has recordings if the profile is of recordings")
        for name, numbers in (("epochs", self.epochs), ("sizes", self.sizes)):
            if any(later <= earlier for earlier, later in pairwise(numbers)):
                raise ValueError(f"{name}: {list(numbers)} are not in ascending order, each once")
        for role, found in self.roles.items():
            if len(found.shares) != len(self.epochs):
                raise ValueError(f"roles.{role}: there are {len(found.shares)} rows for {len(self.epochs)} epochs")
            for epoch, row in zip(self.epochs, found.shares, strict=True):
                place = f"roles.{role}, epoch {epoch}"
                if len(row) != len(self.sizes):
                    raise ValueError(f"{place}: there are {len(row)} shares of {len(self.sizes)} sizes")
                if abs(sum(row) - 1) > len(row) * 10**-DIGITS:
                    raise ValueError(f"{place}: the shares add up to {sum(row):.4g}, not to 1")
        return self

    def shares_of(self, role: str) -> tuple[tuple[float, ...], ...] | None:
        """For each epoch the share of each size, of the role or what of its beginning is known; None for neither.

        >>> profile = load_profile("trained")
        >>> profile.shares_of("feature_map.relu.something") == profile.shares_of("feature_map.relu")
        True
        >>> profile.shares_of("feature_map.something") is None
        True
        """
        parts = role.split(".")
        names = [".".join(parts[:count]) for count in range(len(parts), min(_LEAST_PARTS, len(parts)) - 1, -1)]
        return next((self.roles[name].shares for name in names if name in self.roles), None)


@cache
def load_profile(name: str, folder: Path = FOLDER) -> Profile:
    """A shipped profile by its name; `InputError` where there is none or its file is wrong.

    >>> load_profile("trained").sizes
    (0, 8, 16, 32, 64, 80, 96, 128)
    """
    path = folder / f"{name}.yaml"
    if not path.exists():
        raise InputError.single(
            "compressibility", "profile", f"there is none called '{name}'", did_you_mean(name, profile_names())
        )
    document = read_yaml_mapping(path, SCHEMA)
    return validate(Profile, document.values, lambda place: (document.file, document.place(place)))


def profile_names() -> tuple[str, ...]:
    """Names of the profiles, one file each.

    >>> TRAINED in profile_names()
    True
    """
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))
