"""Models an iteration for a GPU that is not present: fake tensors give the operators, a time model the durations."""
