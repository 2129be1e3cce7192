"""A run as one page that anybody can open: tables, where the time went, and a timeline to look into.

`simgpu.report.writing` is the way in.
"""
