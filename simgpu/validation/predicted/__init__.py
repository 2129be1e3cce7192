"""Predicted peaks of memory beside those that others measured."""
