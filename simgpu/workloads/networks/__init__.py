"""The networks, one module a family; names and variants stand in `simgpu.workloads.catalogue`."""
