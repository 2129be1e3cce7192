"""Real, lossless compressors over real arrays, and the compressed sizes of memory blocks.

`base`: the interface; `registry`: all codecs, one file each. `measure` compresses arrays in several layouts, `sizes`
computes the bytes of a block from a trace's facts, `patterns` models them where these do not suffice.
"""
