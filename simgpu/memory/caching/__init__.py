"""PyTorch's caching allocator for GPU memory, without a clock."""
