"""Policies that plan another one, named by their parameter `inside`."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from simgpu.memory.chunks import Chunk, ResidentChunks
from simgpu.policies.base import Policy, policy_label


@dataclass(frozen=True)
class Outer(Policy):
    """A policy with another one inside, which answers while the program runs."""

    libraries = ("numba", "scipy", "scikit-learn", "bayesian-optimization")  # of policies inside

    @property
    @abstractmethod
    def inner(self) -> Policy:
        """The policy inside. Raises `InputError` for one that cannot be."""

    def __post_init__(self) -> None:
        # Its label, since a mapping, as files have it, cannot be hashed.
        object.__setattr__(self, "inside", policy_label(self.inner))

    @property
    def clairvoyant(self) -> bool:
        """Whether the policy inside is."""
        return self.inner.clairvoyant

    def reclaim(self, residents: ResidentChunks) -> Chunk | None:
        """The chunk that the policy inside evicts."""
        return self.inner.reclaim(residents)
