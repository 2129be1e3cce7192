"""From a network to one training iteration as a plain framework runs it: `entry` has `lower` and `operations_of`."""
