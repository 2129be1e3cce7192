"""The installation instructions in the README match pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: For those who work on simgpu itself.
FOR_DEVELOPMENT = {"test", "dev"}


def test_the_codes_readme_lists_every_extra_with_its_packages() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    readme = (ROOT / "simgpu" / "README.md").read_text()
    table = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", readme.partition("| extra |")[2].partition("\n\n")[0], re.M))
    assert table.keys() == extras.keys() - FOR_DEVELOPMENT
    message = {"torch": "PyTorch", "scipy": "SciPy"}
    for extra, text in table.items():
        for requirement in extras[extra]:
            package = re.split(r"[<>=]", requirement)[0]
            assert package == "pillow" or message.get(package, package) in text, f"{extra} brings {package}"


def test_instructions_for_extras_do_not_use_pip_of_the_environment() -> None:
    """In the activated environment, which has no pip of its own, `python3 -m pip` would fail."""
    for line in (ROOT / "README.md").read_text().splitlines():
        if "python3 -m pip" in line:
            assert line.startswith("python3 -m venv --without-pip")


def test_the_files_that_the_codes_readmes_name_exist() -> None:
    for name in ("simgpu/README.md", "simgpu/DESIGN.md"):
        text = (ROOT / name).read_text()
        named = set(re.findall(r"`((?:\w+/)*\w+\.(?:py|md)|(?:\w+/)+)`", text))
        assert len(named) > 15
        assert not [path for path in named if not (ROOT / path).exists() and not (ROOT / "simgpu" / path).exists()]
