"""Searches for the cheapest vector of options, or for the largest number that fits, with a caller's function.

`space` defines vectors, scores and results; `swarm`, `enumeration`, `exchange` and `bisection` are the searches.
"""
