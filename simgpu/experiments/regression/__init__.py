"""Compares timings with stored ones, for `simgpu check` and the pytest fixture `timing_regression`."""
