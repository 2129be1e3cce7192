"""The recorded cases: models, batch sizes and settings of the methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.units import BYTE_UNITS
from simgpu.validation.measured import Method


@dataclass(frozen=True, slots=True)
class CasePlan:
    """One case to record.

    model: name of the case without its batch size.
    batch: samples per step.
    factory: a built-in model, or ``module.path:factory``.
    blocks: paths of the modules to checkpoint, each separately.
    offload: settings of `Method.ASYNC_OFFLOAD`, named as its counterpart's parameters.
    size: keyword arguments of the factory, without ``batch``.
    """

    model: str
    batch: int
    factory: str
    blocks: tuple[str, ...]
    offload: Mapping[str, int]
    size: Mapping[str, int] = field(default_factory=dict)
    optimizer: str = "sgd"

    @property
    def name(self) -> str:
        """Model and batch size, as in `simgpu.validation.measured.Case.name`."""
        return f"{self.model}-b{self.batch}"

    def settings(self, method: Method) -> dict[str, Any]:
        """A method's settings, named as its counterpart's parameters."""
        if method is Method.CHECKPOINT:
            return {"blocks": list(self.blocks)}
        return dict(self.offload) if method is Method.ASYNC_OFFLOAD else {}

    def setup(self, seed: int, warmup: int) -> dict[str, Any]:
        """The setup of the runs, as in `simgpu.validation.measured.Case.setup`."""
        return {"size": dict(self.size), "optimizer": self.optimizer, "seed": seed, "warmup": warmup}


_BOTTLENECKS = (3, 4, 6, 3)
VGG16_BLOCKS = tuple(f"stage{number}" for number in range(1, 6))
RESNET50_BLOCKS = tuple(
    f"layer{stage}.{place}" for stage, count in enumerate(_BOTTLENECKS, start=1) for place in range(count)
)


def gpt_blocks(layers: int) -> tuple[str, ...]:
    """Paths of the transformer blocks of a GPT with `layers` layers.

    >>> gpt_blocks(2)
    ('blocks.0', 'blocks.1')
    """
    return tuple(f"blocks.{number}" for number in range(layers))


#: For blocks under 1 MiB a link's latency exceeds the transfer time.
_OFFLOAD = {"prefetch": 2, "stash": 2, "min_bytes": BYTE_UNITS["MiB"]}
_SMALL_OFFLOAD = {"prefetch": 2, "stash": 2, "min_bytes": 64 * BYTE_UNITS["KiB"]}
_SMALL_GPT = {"tokens": 128, "layers": 4, "width": 256, "heads": 4, "vocabulary": 4096}

#: For a GPU with 24 GB or more: the networks at their published size, in float32.
CASES = (
    *(CasePlan("vgg16", batch, "vgg16", VGG16_BLOCKS, _OFFLOAD) for batch in (32, 64)),
    *(CasePlan("resnet50", batch, "resnet50", RESNET50_BLOCKS, _OFFLOAD) for batch in (32, 64)),
    *(CasePlan("gpt2-small", batch, "gpt2-small", gpt_blocks(12), _OFFLOAD) for batch in (4, 8)),
)
#: For a CPU, or a quick test: the same networks on small images, and a small transformer.
SMALL_CASES = (
    *(
        CasePlan("vgg16-small", batch, "vgg16", VGG16_BLOCKS, _SMALL_OFFLOAD, {"image": 32, "classes": 10})
        for batch in (8, 16)
    ),
    *(
        CasePlan("resnet50-small", batch, "resnet50", RESNET50_BLOCKS, _SMALL_OFFLOAD, {"image": 64, "classes": 10})
        for batch in (4, 8)
    ),
    *(CasePlan("gpt-small", batch, "gpt2-small", gpt_blocks(4), _SMALL_OFFLOAD, _SMALL_GPT) for batch in (4, 8)),
)


def choose(plans: Sequence[CasePlan], names: Sequence[str]) -> tuple[CasePlan, ...]:
    """Returns the named plans, in the order of `plans`; all of them if no name is given.

    Raises `InputError` for unknown names.

    >>> [plan.name for plan in choose(CASES, ["vgg16-b64", "vgg16-b32"])]
    ['vgg16-b32', 'vgg16-b64']
    >>> choose(CASES, ["vgg16-b46"])
    Traceback (most recent call last):
    simgpu.errors.InputError: case: no case is called 'vgg16-b46'; did you mean 'vgg16-b64'? ...
    """
    known = [plan.name for plan in plans]
    problems = [
        Problem("", "case", f"no case is called {name!r}", _remedy(name, known))
        for name in dict.fromkeys(names)
        if name not in known
    ]
    if problems:
        raise InputError(problems)
    return tuple(plan for plan in plans if not names or plan.name in names)


def _remedy(name: str, known: Sequence[str]) -> str:
    """Suggestion for an unknown case name, which may be in the other set."""
    if any(plan.name == name for plan in SMALL_CASES):
        return "it is a small case: add --small"
    if any(plan.name == name for plan in CASES):
        return "it is not a small case: remove --small"
    return did_you_mean(name, known)
