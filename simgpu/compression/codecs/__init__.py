"""Real, lossless compressors over real arrays, and what a block of memory becomes in them.

`base` says what a codec is, `registry` which there are; each has a file. `measure` compresses arrays in several
layouts, `sizes` tells the bytes of a block from a trace's facts alone, `patterns` models them where these do not tell.
"""
