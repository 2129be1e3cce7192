"""What papers claim beside what is simulated, as one page that needs nothing beside it.

`simgpu.papers.page.page` is the way in.
"""
