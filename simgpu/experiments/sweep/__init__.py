"""Runs the points of a sweep in this process, in worker processes or on a cluster, and stores them as they finish."""
