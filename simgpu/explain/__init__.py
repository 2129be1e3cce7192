"""Explains why an iteration is slow or does not fit: losses by tensor, critical path, what-if runs, smallest budget."""
