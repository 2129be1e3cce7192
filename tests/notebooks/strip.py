"""``python -m tests.notebooks.strip FILES...``: leaves nothing but their cells in notebooks, before a commit."""

import sys
from pathlib import Path

from tests.notebooks.form import stripped

if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(stripped(path.read_text(encoding="utf-8")), encoding="utf-8")
