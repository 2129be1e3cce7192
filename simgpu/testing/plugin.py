"""The pytest plugin that comes with simgpu."""
