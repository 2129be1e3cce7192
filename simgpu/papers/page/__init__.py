"""What papers claim next to what is simulated, as one page that needs nothing next to it.

`simgpu.papers.page.page` is the way in.
"""
