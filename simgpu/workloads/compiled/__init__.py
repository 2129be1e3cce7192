"""Training steps of models under `torch.compile`: durations of fused operators."""
