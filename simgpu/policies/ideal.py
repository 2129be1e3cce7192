"""`ideal`: unlimited memory and no transfers. All slowdowns are relative to it.

It is the oracle of cDMA (section VII: all transfers overlapped) and the ideal case of moDNN (section 7).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simgpu.policies.base import PlanContext, Policy
from simgpu.policies.common.framework import plain_framework
from simgpu.program.instructions import Program


@dataclass(frozen=True)
class Ideal(Policy):
    """Unlimited memory, no transfers, no compression, recorded lifetimes."""

    name = "ideal"
    summary = "unlimited memory, no transfers: the time that compute alone takes"
    source = "moDNN section 7 (ideal case); cDMA section VII (oracle)"

    def plan(self, context: PlanContext) -> Program:
        """The recorded iteration on unlimited memory."""
        return replace(plain_framework(context.graph), unlimited_memory=True)
