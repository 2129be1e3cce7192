"""Measuring the machine one sits at, for a node file: `entry` has `record_node`."""
