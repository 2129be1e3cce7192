"""Fits the time model's parameters to measurements, and compares the fitted model with measurements."""
