"""Many points of a scenario: run here, in processes or on a cluster, kept as they finish, told as one table."""
