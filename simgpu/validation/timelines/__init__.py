"""Kernel timelines of measured steps: recording, matching with a trace's kernels, comparison with a simulation."""
