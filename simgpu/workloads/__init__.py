"""Workloads: modelled networks and HPC solvers, their times, sparsity and compressibility, and batch rescaling."""
