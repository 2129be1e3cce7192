"""Capuchin (Peng et al., ASPLOS 2020): swap or recompute, tensor by tensor, by what one measured iteration shows.

Capuchin's own paper was not available. The sources are HOME (TC 2022, sections 2.3, 4.1 and 4.2) and public summaries
and re-implementations: the review at bodunhu.com ("Paper Review - Capuchin"), readers' notes on its sections 4 and 5,
and the re-implementation in the repository GIS-PuppetMaster/tinyflow (`pycode/tinyflow/capuchinadam.py`). Each module
separates what they agree on from simgpu's own decisions.
"""
