"""MLCommons Chakra execution traces: protobuf (``.et``) and the JSON forms of Chakra's tools, plain or gzip.

Lives here: recognising and the whole way (`load`), a node however it was written (`nodes`) in protobuf (`protobuf`) or
JSON (`documents`), which nodes are kernels (`kernels`), their order (`order`) and their blocks (`memory`). Does not
live here: what PyTorch's operators and tensors mean (`simgpu.trace.importers.pytorch_operators`,
`simgpu.trace.importers.execution_trace`), or the kinds of blocks (`simgpu.trace.importers.kinds`).
"""
