"""PyTorch's operators without PyTorch: shapes, strides, kernels, what autograd saves, and the engine of backward."""
