"""Buddy Compression: memory-entries split between device memory and a larger, slower buddy memory over a link.

`targets` chooses how much device memory each allocation gets, from `snapshots` of arrays, files (`sources`, `stored`)
or traces (`histograms`); `traffic` and `metadata_cache` compute the cost of accesses.
"""
