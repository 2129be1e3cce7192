"""How the time model's parameters were fitted, and how far the fitted model is from what was measured."""
