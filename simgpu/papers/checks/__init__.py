"""Checks: functions that compute the values of claims that no study reports; one or more modules per paper.

A check has keyword arguments with defaults, which experiments may change, and returns plain data by name: numbers,
strings, lists of strings for sets, ``condition(...)`` for whether something holds, and drawings for figures (functions
in `simgpu.papers.checks.results`). The module named after the paper has its checks by name in ``CHECKS``; the names of
its other modules begin with the paper's.
"""
