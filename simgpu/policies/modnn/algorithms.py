"""Which algorithm a convolution runs by (moDNN, section 5.2.3, equation 10)."""

from __future__ import annotations

from typing import NamedTuple

from simgpu.trace.model import AlgorithmChoice


class Candidate(NamedTuple):
    """An algorithm with its penalties: delay (ns) by offloading for its workspace, and prefetches (ns) it holds up."""

    choice: AlgorithmChoice
    offloading_ns: int
    held_up_ns: int

    def gain(self, base_ns: int) -> int:
        """Equation 10, nanoseconds. base_ns: duration of the algorithm with the least workspace.

        >>> Candidate(AlgorithmChoice("F1", "fft", 60, 500), offloading_ns=10, held_up_ns=5).gain(100)
        25
        """
        return base_ns - self.choice.duration_ns - self.offloading_ns - self.held_up_ns


def least(choices: tuple[AlgorithmChoice, ...]) -> AlgorithmChoice:
    """The algorithm that equation 10 calls the base: the least workspace, and the fastest of those."""
    return min(choices, key=lambda choice: (choice.workspace_bytes, choice.duration_ns, choice.algorithm))


def best(candidates: list[Candidate], base_ns: int) -> AlgorithmChoice | None:
    """The candidate of maximum gain; of equal ones the one with the smaller workspace, then by name."""
    if not candidates:
        return None
    found = min(candidates, key=lambda c: (-c.gain(base_ns), c.choice.workspace_bytes, c.choice.algorithm))
    return found.choice
