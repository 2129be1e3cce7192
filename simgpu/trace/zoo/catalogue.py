"""The networks by name: what each is, what it takes, how it is built.

Lives here: `NETWORKS` and `build`. Does not live here: the networks (one module a family in
`simgpu.trace.zoo.networks`), or how one becomes a trace (`simgpu.trace.zoo.lowering`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.trace.zoo.network import Network
from simgpu.trace.zoo.networks.alexnet import alexnet, nin, overfeat
from simgpu.trace.zoo.networks.images import CIFAR10, IMAGENET
from simgpu.trace.zoo.networks.vgg import vgg

Value = bool | int | float | str
IMAGES = (IMAGENET, CIFAR10)


@dataclass(frozen=True, slots=True)
class Variant:
    """One way in which a network can differ: its usual value, and what it means in a line."""

    default: Value
    meaning: str

    def allows(self, value: object) -> bool:
        """Whether a value is of the variant's type; whole numbers count as numbers."""
        if isinstance(self.default, float):
            return isinstance(value, int | float) and not isinstance(value, bool)
        return type(value) is type(self.default)


@dataclass(frozen=True, slots=True)
class Entry:
    """One network of the zoo: what it is in a line, its inputs (the usual one first), its variants by name."""

    name: str
    description: str
    factory: Callable[..., Network]
    inputs: tuple[str, ...] = IMAGES
    variants: Mapping[str, Variant] = field(default_factory=lambda: MappingProxyType({}))


_BATCH_NORM = Variant(False, "normalization after each convolution, which then has no bias")

_ENTRIES = (
    Entry(
        "alexnet",
        "AlexNet (Krizhevsky et al. 2012): five convolutions, three linear layers",
        alexnet,
        variants={"grouped": Variant(True, "two groups and normalization of 2012; else the single column of 2014")},
    ),
    Entry("overfeat", "OverFeat, fast model (Sermanet et al. 2014)", overfeat, (IMAGENET,)),
    Entry("nin", "Network in Network (Lin et al. 2014)", nin),
    *(
        Entry(
            f"vgg{depth}",
            f"VGG-{depth} (Simonyan and Zisserman 2015{', lengthened' if depth == 101 else ''})",
            partial(vgg, depth),
            variants={"batch_norm": _BATCH_NORM},
        )
        for depth in (11, 13, 16, 19, 101)
    ),
)

#: Every network by its name.
NETWORKS: Mapping[str, Entry] = MappingProxyType({entry.name: entry for entry in _ENTRIES})


def zoo_names() -> tuple[str, ...]:
    """Names of all networks, in the order of `NETWORKS`."""
    return tuple(NETWORKS)


def build(name: str, input: str | None = None, **variant: Value) -> Network:
    """The network of that name for an input (its usual one where None) in a variant; see `NETWORKS` for all of them.

    `InputError` tells every word that is not known.

    >>> build("vgg16", "cifar10").layers[-2].shape
    (10,)
    """
    if name not in NETWORKS:
        raise InputError.single("", "network", f"{name!r} is not in the zoo", did_you_mean(name, NETWORKS))
    entry = NETWORKS[name]
    problems = []
    if input is not None and input not in entry.inputs:
        remedy = did_you_mean(input, entry.inputs)
        problems.append(Problem("", f"network {name}, input", f"{input!r} is not an input of it", remedy))
    problems += [problem for key, value in variant.items() for problem in _wrong(entry, key, value)]
    if problems:
        raise InputError(problems)
    return entry.factory(input or entry.inputs[0], **variant)


def _wrong(entry: Entry, key: str, value: Value) -> list[Problem]:
    place = f"network {entry.name}, variant {key}"
    if key not in entry.variants:
        return [Problem("", place, "is not a variant of it", did_you_mean(key, entry.variants))]
    known = entry.variants[key]
    if known.allows(value):
        return []
    return [
        Problem(
            "", place, f"{value!r} is not a {type(known.default).__name__}", f"its usual value is {known.default!r}"
        )
    ]
