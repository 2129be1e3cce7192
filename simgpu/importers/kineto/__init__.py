"""Importing PyTorch profiler (Kineto) recordings; start reading at `load`."""
