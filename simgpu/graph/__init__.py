"""What must happen: the trace as tasks with true dependencies, layers, and pure transforms of both."""
