"""What `fit` finds out about a candidate: `FitRun` at one size, `FitRow` as its answer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from simgpu.experiments.fit.candidates import Candidate
from simgpu.policies.base import plain_parameters
from simgpu.trace.model import BlockKind, Trace

_NAMES = ("gradients", "optimizer state")
_KINDS = (BlockKind.WEIGHT, BlockKind.WEIGHT_GRADIENT, BlockKind.OPTIMIZER_STATE)


@dataclass(frozen=True, slots=True)
class Persistent:
    """Bytes of the weights, gradients and optimizer state that are on the GPU whatever the batch."""

    weights: int
    gradients: int
    optimizer_state: int

    @property
    def total(self) -> int:
        """All three together, in bytes."""
        return self.weights + self.gradients + self.optimizer_state

    @property
    def named(self) -> str:
        """What of the three there is, in words.

        >>> Persistent(8, 0, 16).named
        'weights and optimizer state'
        """
        rest = [name for name, size in zip(_NAMES, (self.gradients, self.optimizer_state), strict=True) if size]
        return " and ".join([", ".join(["weights", *rest[:-1]]), *rest[-1:]])

    @classmethod
    def of(cls, trace: Trace, candidate: Candidate) -> Persistent:
        """Those of a trace under a candidate, whose optimizer may be on the host, or update weights in backward."""
        weights, gradients, state = (
            -(-sum(b.bytes for b in trace.blocks if b.kind is kind) // candidate.shares) for kind in _KINDS
        )
        if candidate.on_host:
            return cls(weights, 0 if candidate.parameters.get("free_gradients") else gradients, 0)
        return cls(weights, 0 if candidate.build.get("optimizer_in_backward") else gradients, state)


@dataclass(frozen=True, slots=True)
class FitRun:
    """What one candidate takes at one size. Times in ns, memory in bytes.

    batch: samples of the step. length: tokens of each; None where samples have none. micro_batches: into which the
    batch is divided. fits: within the budget. peak: the most that is allocated at once; above the budget, in unlimited
    memory. reserved: the most that PyTorch's allocator had. step_ns: with the optimizer. link_bytes: copied over the
    link. allocator: settings of PyTorch's allocator that it needs to fit, empty for the default ones. plain_ns: of the
    same samples as the model is trained by default, in unlimited memory; 0 if not known; operators: of that iteration.
    alone_ns: step time without other GPUs that share the node.
    """

    batch: int
    length: int | None
    micro_batches: int
    fits: bool
    peak: int
    reserved: int
    step_ns: int
    link_bytes: int
    persistent: Persistent
    allocator: str = ""
    plain_ns: int = 0
    alone_ns: int = 0
    operators: int = 0

    @property
    def sharing(self) -> float:
        """The part of `cost` that is due to other GPUs, which share switches and the host."""
        return (self.step_ns - self.alone_ns) / self.plain_ns if self.plain_ns else 0.0

    @property
    def cost(self) -> float:
        """Step time over that of plain training in unlimited memory, minus one."""
        return self.step_ns / self.plain_ns - 1 if self.plain_ns else 0.0

    @property
    def samples_per_s(self) -> float:
        """Samples per second."""
        return self.batch * 10**9 / self.step_ns if self.step_ns else 0.0

    @property
    def speed(self) -> float:
        """Tokens per second; samples per second where samples have no length."""
        return self.samples_per_s * (self.length or 1)


@dataclass(frozen=True, slots=True)
class FitRow:
    """The answer for one candidate.

    run: at the requested size, or at the largest one that fits; where none fits, at the smallest. None if the model or
    the policy does not support it. note: why it is not supported, or not in micro-batches. capped: whether the run has
    the largest size that was tried.
    """

    candidate: Candidate
    run: FitRun | None
    note: str = ""
    capped: bool = False

    @property
    def fits(self) -> bool:
        """Whether there is a run that fits."""
        return self.run is not None and self.run.fits

    def size(self, searched: str) -> int:
        """Its batch or length; 0 if neither is searched, or there is no run."""
        return getattr(self.run, searched, None) or 0 if searched else 0

    def values(self) -> dict[str, Any]:
        """Its numbers in base units, by name; only what names the candidate if there is no run."""
        candidate = self.candidate
        about: dict[str, Any] = {"option": candidate.label, "fits": self.fits, "note": self.note}
        about |= {"policy": candidate.policy, "parameters": plain_parameters(candidate.parameters)}
        about |= {"build": dict(candidate.build), "switches": list(candidate.switches), "changes": candidate.changes}
        if self.run is None:
            return about
        run = asdict(self.run)
        persistent = run.pop("persistent")
        del run["operators"]
        run |= {
            "cost": self.run.cost,
            "sharing": self.run.sharing,
            "samples_per_s": self.run.samples_per_s,
            "capped": self.capped,
        }
        return about | run | {f"{name}_bytes": size for name, size in persistent.items()}

    def cells(self) -> dict[str, Any]:
        """Its numbers as `values` has them, each a number or a text: every option of the build has a column."""
        values, candidate = self.values(), self.candidate
        build = {
            name: plain_text(value) if isinstance(value, tuple) else value for name, value in candidate.build.items()
        }
        texts = {"parameters": parameters_text(candidate), "switches": "; ".join(candidate.switches)}
        del values["build"]
        return values | texts | build


def parameters_text(candidate: Candidate) -> str:
    """The parameters of its policy in YAML, without braces.

    >>> parameters_text(Candidate("", "", "checkpoint", {"keep": ("torchtitan",), "early_stop": False}))
    'keep: [torchtitan], early_stop: false'
    """
    return ", ".join(f"{name}: {_in_yaml(value)}" for name, value in candidate.parameters.items())


def plain_text(value: object) -> str:
    """A value of an option; of several, with plus signs between them."""
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _in_yaml(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def speed_text(speed: float) -> str:
    """Samples or tokens per second for people.

    >>> speed_text(8993.7), speed_text(12.345)
    ('8,994', '12.3')
    """
    return f"{speed:,.0f}" if speed >= 1000 else f"{speed:.3g}"
