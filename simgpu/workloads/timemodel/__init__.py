"""How long a kernel takes on a named GPU, modelled from operation and byte counts."""
