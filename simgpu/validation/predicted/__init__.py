"""Compares predicted peaks of memory with those that others measured."""
