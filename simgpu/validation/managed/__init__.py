"""Runs training iterations under a memory management method: plain, checkpointing, or one of two offloads."""
