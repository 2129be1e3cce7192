"""Stored timings and what changed since: `simgpu check` and the pytest fixture `timing_regression`."""
