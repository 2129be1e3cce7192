"""What claims need that no study tells: functions, each finding values by name; a module or more a paper.

A check takes keyword arguments with defaults, of which an experiment may change some, and gives plain data: numbers,
texts, lists of texts for sets, ``condition(...)`` for what holds or not, and drawings for figures (all in
`simgpu.papers.checks.results`). ``CHECKS`` of the module that is called as the paper has its functions by name;
modules next to it begin with that name.
"""
