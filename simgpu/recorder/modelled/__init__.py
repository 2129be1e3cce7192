"""An iteration of a PyTorch model for a GPU that is not there: fake tensors for what happens, a time model for when."""
