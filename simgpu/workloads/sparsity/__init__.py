"""Modelled sparsity of feature maps over training.

`generator.with_sparsity` adds modelled rows to a trace; `generator.load_profile` reads the parameters, one file per
profile in `profiles/`.
"""
