"""Why an iteration is slow, or does not fit: what was lost to which tensor, the critical path, and what would help."""
