"""Feature-map sparsity over training where nobody measured it: one documented generator, parameters per network.

`with_sparsity` (in `generator`) adds modelled rows to a trace; `profile` reads the parameters, one file a network in
`profiles/`.
"""
