"""`joint`: keep, swap, swap encoded or recompute each feature map, and say how far from the best possible that is."""
