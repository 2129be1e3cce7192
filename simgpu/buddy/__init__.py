"""Buddy Compression: memory-entries split between device memory and a larger, slower buddy memory over a link.

`targets` chooses how much device memory each allocation gets. Does not live here: bit-plane compression
(`simgpu.codecs`), or behaviour over time (`simgpu.machine`).
"""
