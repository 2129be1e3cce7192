"""Running the points of a sweep: here, in processes or on a cluster; stored as they finish; one table."""
