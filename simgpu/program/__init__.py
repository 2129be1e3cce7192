"""Programs as data: the instructions of each stream, their lowering from placements, and their verification."""
