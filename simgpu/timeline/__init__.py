"""Timelines: spans, memory curves, and their formats."""
