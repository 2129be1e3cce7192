"""What placements cost, many at once, without running them."""
