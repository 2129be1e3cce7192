"""Held against real hardware: the same iteration run under real memory management, beside what is simulated."""
