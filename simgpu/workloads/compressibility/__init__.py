"""How compressible the memory of a trace's blocks is, entry by entry, where nobody measured it.

`with_compressibility` (in `generator`) adds modelled rows to a trace; `profile` reads what they are made of, which
`measured` takes from recordings. `entries` has the rows as histograms.
"""
