"""How the time model's parameters were fitted, and how far the fitted model is from what was measured.

Lives here: measurements (`published.yaml`, `recordings.yaml`), samples made from them, the fit and the comparison. Does
not live here: the model (`simgpu.trace.timemodel`), which knows nothing of this room.
"""
