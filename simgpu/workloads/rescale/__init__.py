"""Rescales a trace to another batch size, with `at_batch`."""

from simgpu.workloads.rescale.entry import at_batch, check_rescalable

__all__ = ["at_batch", "check_rescalable"]
