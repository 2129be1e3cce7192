"""What all pages that simgpu writes have in common.

Lives here: how a page looks before it shows anything (`base.css`), how its template is filled, and which targets are
none. Does not live here: what a page shows (`simgpu.report`, `simgpu.reproduction.page`).
"""
