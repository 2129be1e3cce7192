"""PyTorch memory snapshots (`torch.cuda.memory._dump_snapshot`)."""
