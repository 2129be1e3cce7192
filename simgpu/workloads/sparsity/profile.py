"""The parameters of the sparsity generator: one file a network, checked, with the source of each number.

Imports pydantic, so it is imported when needed.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from simgpu.errors import InputError, did_you_mean
from simgpu.io.schema import FileModel, validate
from simgpu.io.yaml_files import read_yaml_mapping

SCHEMA = "simgpu.sparsity/1"
FOLDER = Path(__file__).with_name("profiles")

#: The profile of every network that has none of its own.
GENERAL = "general"

#: No feature map is modelled as emptier than this: the sparsest that cDMA (section IV-B) reports.
EMPTIEST = 0.93

Share = Annotated[float, Field(ge=0, le=1)]
Text = Annotated[str, Field(min_length=1)]


class Curve(FileModel):
    """Sparsity over training: from `start` to an extreme `turn` at the share `turn_at` of it, then to `end`.

    Both ways the change is fast first and slower later, as activation density falls and climbs in cDMA (section
    IV-B, figure 7). In density, a `turn` above both ends is the U.

    >>> curve = Curve(start=0.5, turn=0.8, turn_at=0.25, end=0.6)
    >>> [round(curve.at(share), 3) for share in (0, 0.125, 0.25, 0.5, 1)]
    [0.5, 0.725, 0.8, 0.689, 0.6]
    """

    start: Share
    turn: Share
    turn_at: Share
    end: Share

    def at(self, share: float) -> float:
        """Sparsity after this share of training, 0 at its begin, 1 at its end."""
        if share < self.turn_at:
            return self.start + (self.turn - self.start) * _fast_then_slow(share / self.turn_at)
        if self.turn_at == 1:
            return self.turn
        return self.turn + (self.end - self.turn) * _fast_then_slow((share - self.turn_at) / (1 - self.turn_at))

    def deepened(self, factor: float) -> Curve:
        """The curve with its turn and end `factor` times as far from its start, within 0 and `EMPTIEST`."""
        turn, end = (
            max(0.0, min(EMPTIEST, self.start + factor * (value - self.start))) for value in (self.turn, self.end)
        )
        return Curve(start=self.start, turn=turn, turn_at=self.turn_at, end=end)


def _fast_then_slow(x: float) -> float:
    return 1 - (1 - x) ** 2


class Profile(FileModel):
    """What is known of a network's sparsity; see `simgpu.workloads.sparsity.generator` for how it is used."""

    schema_: Literal["simgpu.sparsity/1"] = Field(alias="schema")
    networks: tuple[Text, ...] = Field(strict=False, description="models that it is for, as the model zoo names them")
    first: Curve = Field(description="of the first ReLU")
    shallow: Curve = Field(description="of the first ReLU after it; those between follow their depth")
    deep: Curve = Field(description="of the last ReLU that follows a convolution")
    linear: Curve = Field(description="of ReLUs that follow a linear layer")
    depths: dict[str, Annotated[float, Field(ge=0)]] = Field(
        default_factory=dict,
        description="by model: how far shallow and deep move from their starts; fitted to a network-wide mean",
    )
    layers: dict[str, Curve] = Field(default_factory=dict, description="of single ReLUs, by their layer's name")
    pool_clustering: Share = Field(description="how far zeros lie together; 0: anywhere, 1: a pool sees all or none")
    dropout: Share = Field(default=0.5, description="share of values that a dropout drops")
    sources: dict[str, Text]


@cache
def load_profile(name: str, folder: Path = FOLDER) -> Profile:
    """A shipped profile by its name; `InputError` where there is none or its file is wrong.

    >>> load_profile("vgg16").first.at(0.5)
    0.5
    """
    path = folder / f"{name}.yaml"
    if not path.exists():
        raise InputError.single(
            "sparsity", "profile", f"there is none for '{name}'", did_you_mean(name, profile_names())
        )
    document = read_yaml_mapping(path, SCHEMA)
    return validate(Profile, document.values, lambda place: (document.file, document.place(place)))


def profile_for(model: str) -> str:
    """Name of the profile for a model: the one that lists it, else the general one.

    >>> profile_for("vgg16"), profile_for("a model of one's own")
    ('vgg16', 'general')
    """
    return next((name for name in profile_names() if model in load_profile(name).networks), GENERAL)


def profile_names() -> tuple[str, ...]:
    """Names of the profiles, one file each.

    >>> "vgg16" in profile_names(), GENERAL in profile_names()
    (True, True)
    """
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))
