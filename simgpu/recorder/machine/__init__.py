"""Measures the local machine for a node file; see `record_node` in `entry`."""
