"""Loading a trace does not import the rest of the package, so that scripts and notebooks start fast."""

import subprocess
import sys

_LIMIT = 3500
_COUNT = """
import inspect, sys
import simgpu

simgpu.load_trace("resnet20-cifar-cpu")
names = [name for name in sys.modules if name.partition(".")[0] == "simgpu"]
print(sum(len(inspect.getsourcelines(sys.modules[name])[0]) for name in names))
"""


def test_loading_a_csv_trace_imports_few_modules():
    lines = subprocess.run([sys.executable, "-c", _COUNT], capture_output=True, text=True, check=True).stdout
    assert int(lines) <= _LIMIT
