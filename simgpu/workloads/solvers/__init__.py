"""Small solvers that really run: arrays as HPC programs hold them, and what one of their steps does on a GPU."""
