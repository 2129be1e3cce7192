"""The kernel timeline of a real step: recorded, matched with a trace's kernels, and beside a simulated one.

Lives here: what the device did in one step (`recording`, through `profiled` and `profile` on CUDA, `dispatched` on the
CPU), calls of operators (`calls`) matched with those expected (`matching`, `alignment`), a step's time dealt out to
kernels (`durations`), and a measured step beside a simulated iteration (`beside`, told in `words`).

Does not live here: running steps under a method (`simgpu.validation.managed`), calibrating with their times
(`simgpu.validation.calibration`), or tables and figures.
"""
