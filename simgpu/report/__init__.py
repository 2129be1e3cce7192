"""A run as one page that anybody can open: tables, where the time went, and a timeline to look into.

`simgpu.report.writing` is the way in. Does not live here: running (`simgpu.experiments`), or figures as images
(`simgpu.analysis.plots`).
"""
