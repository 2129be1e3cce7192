"""Buddy Compression: memory-entries split between device memory and a larger, slower buddy memory over a link.

`targets` chooses how much device memory each allocation gets; `streams` and `metadata_cache` count how often what
tells of an entry has to be read from device memory first. Does not live here: bit-plane compression (`simgpu.codecs`),
or behaviour over time (`simgpu.machine`).
"""
