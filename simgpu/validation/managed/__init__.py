"""A training iteration under real memory management: plain, checkpointing, and two kinds of offload."""
