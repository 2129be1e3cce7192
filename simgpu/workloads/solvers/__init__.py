"""Small HPC solvers that run with NumPy, and the GPU kernels and memory accesses of one of their steps."""
