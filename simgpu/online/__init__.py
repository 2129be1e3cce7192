"""Programs that are written while a policy decides, kernel after kernel, with the clock and the memory in view."""
