"""Why an iteration is slow, or does not fit: what was lost to which tensor, the critical path, and what would help.

Lives here: looking back at a run (`losses`, `critical_path`) and running it again with something changed (`what_if`,
`smallest_budget`). Does not live here: the numbers of a run (`simgpu.analysis`), or the command (`simgpu.cli.explain`).
"""
