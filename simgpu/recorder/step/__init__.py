"""Records one step of a training loop of the user's own."""
