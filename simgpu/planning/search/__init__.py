"""Searches for a cheap vector of options, or for the largest number that fits, by asking a caller's function alone.

`space` says what is searched and what a search found; `swarm`, `enumeration`, `exchange` and `bisection` are the
searches.
"""
