"""For tests of who uses simgpu: timings that must not change unnoticed, as a pytest fixture.

Lives here: what pytest loads. Does not live here: comparing (`simgpu.experiments`).
"""
