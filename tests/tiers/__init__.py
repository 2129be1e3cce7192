"""A node with a third memory, and a policy that uses it."""
