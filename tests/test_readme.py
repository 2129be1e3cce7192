"""What the README says of installing is what pyproject.toml offers."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: For those who work on simgpu itself.
FOR_DEVELOPMENT = {"test", "dev"}


def test_every_extra_is_named_with_the_packages_that_it_brings() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    readme = (ROOT / "README.md").read_text()
    table = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", readme.partition("| extra |")[2].partition("\n\n")[0], re.M))
    assert table.keys() == extras.keys() - FOR_DEVELOPMENT
    message = {"torch": "PyTorch", "scipy": "SciPy"}
    for extra, text in table.items():
        for requirement in extras[extra]:
            package = re.split(r"[<>=]", requirement)[0]
            assert package == "pillow" or message.get(package, package) in text, f"{extra} brings {package}"


def test_installing_an_extra_asks_the_environment_for_no_pip_of_its_own() -> None:
    """`python3 -m pip` is the environment's once it is switched on, which was made without pip."""
    for line in (ROOT / "README.md").read_text().splitlines():
        if "python3 -m pip" in line:
            assert line.startswith("python3 -m venv --without-pip")
