"""Packages installed next to simgpu for a test: the example policy by pip, broken ones as hand-written folders."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "tests" / "example_policy"


def build_wheel(project: Path, folder: Path) -> Path:
    """The wheel of a pure project, packed from its `pyproject.toml` without its build backend, so without a network."""
    about = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    table = about["project"]
    stem = f"{table['name'].replace('-', '_')}-{table['version']}"
    points = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in result.items())
        for group, result in table["entry-points"].items()
    )
    metadata = f"Metadata-Version: 2.1\nName: {table['name']}\nVersion: {table['version']}\n"
    tag = "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {f"{stem}.dist-info/{name}": text for name, text in (("METADATA", metadata), ("WHEEL", tag))}
    files[f"{stem}.dist-info/entry_points.txt"] = points
    for package in about["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        source = project / package
        for path in sorted(source.rglob("*.py")):
            files[path.relative_to(source.parent).as_posix()] = path.read_text(encoding="utf-8")
    record = f"{stem}.dist-info/RECORD"
    files[record] = "".join(f"{name},,\n" for name in (*files, record))
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return wheel


def pip_install(wheel: Path, target: Path) -> None:
    """Installs a wheel into a folder with pip, without dependencies or network."""
    options = ["--quiet", "--no-deps", "--no-index", "--no-input", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(wheel)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)


def write_distribution(folder: Path, points: dict[str, str], modules: dict[str, str]) -> Path:
    """A folder that looks as if a package with these entry points and modules had been installed there."""
    folder.mkdir(parents=True)
    info = folder / "strange-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strange\nVersion: 1.0\n", encoding="utf-8")
    lines = [f"{name} = {value}\n" for name, value in points.items()]
    (info / "entry_points.txt").write_text("[simgpu.policies]\n" + "".join(lines), encoding="utf-8")
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


def python_with(*folders: Path, arguments: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs Python in a separate process with this simgpu and the packages of these folders on its path."""
    path = os.pathsep.join(map(str, (ROOT, *folders)))
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "120", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def command_with(*folders: Path, arguments: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs the command line in a separate process, see `python_with`."""
    start = "from simgpu.cli import main; main(prog_name='simgpu')"
    return python_with(*folders, arguments=["-c", start, *arguments], cwd=cwd)
