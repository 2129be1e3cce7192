"""`joint`: keep, swap, swap encoded or recompute each feature map, and say how far from the best possible that is.

Lives here: the policy (`policy`), what it chooses from (`actions`), and how it searches (`exploring`). Does not live
here: what a choice costs and the least that any can cost (`simgpu.evaluate`), or the policies that it starts from.
"""
