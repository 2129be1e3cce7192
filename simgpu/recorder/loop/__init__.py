"""Runs a training loop from the model's first weight on the device, and notes what it requests from the allocator."""
