"""A run as one self-contained HTML page: tables, time breakdown, and an interactive timeline.

The entry point is `simgpu.report.writing.write_report`.
"""
