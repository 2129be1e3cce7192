"""`none`: a plain framework. Everything stays where it is until the framework lets go of it."""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.policies.base import PlanContext, Policy
from simgpu.policies.common.framework import plain_framework
from simgpu.program.instructions import Program


@dataclass(frozen=True)
class NoPolicy(Policy):
    """Everything resident over its recorded lifetime; out of memory where that does not fit.

    Source: the recording itself. A block whose lifetime was not recorded is held until its last use. Nothing is
    allocated as compressed, also where the node's memory could.
    """

    name = "none"
    summary = "a plain framework: everything resident, out of memory when it does not fit"
    source = "the recorded framework's own lifetimes"

    def plan(self, context: PlanContext) -> Program:
        """The recorded iteration as it was; its notes say so where the recording leaves lifetimes open."""
        return plain_framework(context.graph)
