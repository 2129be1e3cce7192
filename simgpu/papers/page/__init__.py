"""Writes a reproduction as one self-contained HTML page."""
