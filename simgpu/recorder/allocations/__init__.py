"""Records what a training loop allocates, from the model's first weight to the last step."""
