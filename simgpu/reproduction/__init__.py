"""What papers claim, as numbers and rules, beside what comes out here.

Lives here: the claims (`claims/`, one file a paper), what simulates them (studies, and the functions in `checks/`),
verdicts, the causes of what is off, and the page of it all. Does not live here: studies themselves (``scenarios/``), or
what the time model is held to (`simgpu.trace.calibration`).
"""
