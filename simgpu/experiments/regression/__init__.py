"""Timings that are kept, and what has changed since: `simgpu check` and the pytest fixture `timing_regression`."""
