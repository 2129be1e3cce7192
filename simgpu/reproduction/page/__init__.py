"""What papers claim beside what is simulated, as one page that needs nothing beside it.

`simgpu.reproduction.page.writing` is the way in. Does not live here: running claims and judging them
(`simgpu.reproduction.reproduce`), the words of numbers (`simgpu.reproduction.tables`), or what all pages have in common
(`simgpu.webpage`).
"""
