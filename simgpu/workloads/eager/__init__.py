"""PyTorch's operators without PyTorch: shapes, strides, kernels, what autograd saves, and backward as its engine runs."""
