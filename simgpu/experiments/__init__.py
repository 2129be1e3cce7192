"""Runs of many simulations: comparisons, sweeps, studies, trainings and searches, and their output files."""
