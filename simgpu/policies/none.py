"""`none`: a plain framework without a memory policy. It frees each block where the recording did."""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.policies.base import PlanContext, Policy
from simgpu.policies.common.framework import plain_framework
from simgpu.program.instructions import Program


@dataclass(frozen=True)
class NoPolicy(Policy):
    """Everything resident over its recorded lifetime; out of memory where that does not fit.

    Source: the recording itself. A block whose lifetime was not recorded is held until its last use. Nothing is
    compressed, even on a node with compressed memory.
    """

    name = "none"
    summary = "a plain framework: everything resident, out of memory when it does not fit"
    source = "the recorded framework's own lifetimes"

    def plan(self, context: PlanContext) -> Program:
        """The recorded iteration; a note says where the recording lacks lifetimes."""
        return plain_framework(context.graph)
