"""A trace at another batch size."""

from simgpu.workloads.rescale.entry import at_batch

__all__ = ["at_batch"]
