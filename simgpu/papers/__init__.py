"""Compares claims of papers with simulation results."""
