"""The version of simgpu, which every output names."""

__version__ = "0.1.0"
