"""Claims of papers compared with simulation."""
