"""The networks, one module per family; `simgpu.workloads.catalogue` has their names and variants."""
