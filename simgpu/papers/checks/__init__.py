"""Checks: functions that compute the values of claims that no study reports; one or more modules per paper.

A check has keyword arguments with defaults, which experiments may change, and returns plain data by name: numbers,
texts, lists of texts for sets, ``condition(...)`` for what holds or not, and drawings for figures (all in
`simgpu.papers.checks.results`). ``CHECKS`` in the module named like the paper has its functions by name; the names of
its other modules begin with the paper's.
"""
