"""Models the duration of a kernel on a GPU from operation and byte counts."""
