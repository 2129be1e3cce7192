"""Lowers a network to a framework's training iteration: `entry` has `lower` and `operations_of`."""
