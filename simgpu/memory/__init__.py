"""Memory pools, footprints and transfer times: pure, without a clock; machine and planners share this code."""
