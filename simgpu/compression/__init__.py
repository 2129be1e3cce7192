"""Lossless codecs, and compressed GPU memory (Buddy Compression)."""
