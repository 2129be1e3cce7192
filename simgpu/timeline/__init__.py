"""What happened: spans, memory curves, and their formats."""
