"""The kernel timeline of a real step: recorded, matched with a trace's kernels, and beside a simulated one."""
