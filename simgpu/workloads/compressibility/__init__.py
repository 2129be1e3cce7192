"""Modelled compressibility of a trace's blocks, as histograms of memory-entries.

`generator.with_compressibility` adds modelled rows to a trace; `generator.load_profile` reads the profiles, which
`measured` derives from recordings.
"""
