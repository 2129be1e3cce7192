"""Lossless compressors of NumPy arrays, and the compressed sizes of memory blocks.

`base`: the interface; `registry`: all codecs, one module each. `measure` compresses arrays in several layouts. `sizes`
computes the compressed size of a block from measured sizes or sparsity in a trace; `patterns` models it if these do not
determine it.
"""
