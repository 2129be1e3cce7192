"""Capuchin (Peng et al., ASPLOS 2020): swap or recompute, tensor by tensor, by what one measured iteration shows.

Capuchin's own paper was not at hand. What these modules say of it comes from HOME (TC 2022, sections 2.3, 4.1 and 4.2)
and from public summaries and re-implementations of the paper: the review at bodunhu.com ("Paper Review - Capuchin"),
readers' notes that follow its sections 4 and 5, and the re-implementation in the repository GIS-PuppetMaster/tinyflow
(`pycode/tinyflow/capuchinadam.py`). Each module tells what these agree on, and what is a reading of ours.
"""
