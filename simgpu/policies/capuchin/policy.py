"""`capuchin`: swap or recompute each feature map by measured accesses, after Peng et al., ASPLOS 2020.

Capuchin's own paper was not at hand. Of the version `home`, HOME (TC 2022) tells in sections 2.3, 4.1, 4.2 and 5.3
that it is greedy, decides from the first tensor to the current one, and swaps asynchronously; the rest are readings,
told in its module. The version `published` follows public summaries and re-implementations (named in the package):
passive mode, free time, in-triggers and their feedback by 5 %, memory saving per second and its updates are told alike
by several; the order of evictions, what a swap on demand counts for, how the link is shared among swaps, and when
enough is saved are readings of ours, told in the modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simgpu.policies.base import PlanContext, Policy, parameter
from simgpu.policies.capuchin.published import published
from simgpu.policies.capuchin.rebuilt import rebuilt
from simgpu.program.instructions import Program


@dataclass(frozen=True)
class Capuchin(Policy):
    """Swap what can be swapped unseen, recompute what is quickly made again, one feature map after the other."""

    name = "capuchin"
    summary = "swap or recompute feature maps one by one, greedily"
    source = "Peng et al., ASPLOS 2020, from public summaries; HOME (TC 2022), sections 2.3 and 4.1"
    libraries = ("numba",)

    version: Literal["home", "published"] = parameter(
        "home",
        "as HOME rebuilt it (from the first feature map to the current one, by the cost so far), or as published (by "
        "free time and memory saving per second of a measured iteration)",
    )

    def plan(self, context: PlanContext) -> Program:
        """One iteration. Raises `InputError` for a trace with several compute streams."""
        return rebuilt(context) if self.version == "home" else published(context)
