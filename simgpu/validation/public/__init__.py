"""Published measurements of training steps, and what simgpu predicts for them."""
