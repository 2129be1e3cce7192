"""The kernel timeline of a real step: recorded, matched with a trace's kernels, and next to a simulated one."""
