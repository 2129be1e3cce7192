"""``simgpu report``: write a run as one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from simgpu.cli.screen import progress
from simgpu.errors import InputError, did_you_mean
from simgpu.experiments.compare import compare
from simgpu.experiments.scenarios.load import load_scenario
from simgpu.io.shipped import shipped_names
from simgpu.report.recorded import read_run, recorded_from
from simgpu.report.writing import check_target, write_recorded
from simgpu.version import __version__


@click.command()
@click.argument("result")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the page to this file.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
def report(result: str, output: Path | None, quiet: bool) -> None:
    """Write RESULT as one HTML page with tables and an interactive timeline.

    RESULT is a folder that `simgpu run -o` wrote; its page is report.html in that folder unless -o is given. RESULT
    can also be a scenario: it is run, and its page is NAME.html. The page needs no network and no other files. Each
    policy's timeline is written next to the page, in a format for https://ui.perfetto.dev.

    \b
    simgpu run quickstart -o results/try
    simgpu report results/try
    simgpu report quickstart -o quickstart.html
    """
    with progress(quiet) as say:
        if _is_scenario(result):
            scenario = load_scenario(result)
            target = output or Path(f"{Path(result).stem}.html")
            check_target(target)
            about = {"simgpu": __version__, "scenario": scenario.name, "description": scenario.description}
            recorded = recorded_from(compare(scenario, progress=say), about)
        else:
            target = output or Path(result) / "report.html"
            say("reading the run")
            recorded = read_run(result)
        say("writing the page")
        page, *timelines = write_recorded(recorded, target)
    click.echo(f"written to {page}")
    if timelines:
        names = ", ".join(file.name for file in timelines)
        click.echo(f"timelines for https://ui.perfetto.dev, in the same folder: {names}")


def _is_scenario(result: str) -> bool:
    """Whether `result` is a scenario. An existing folder takes precedence.

    Raises `InputError` for a name that is neither.
    """
    if Path(result).is_dir():
        return False
    names = shipped_names("scenarios")
    if result in names or result.endswith((".yaml", ".yml")):
        return True
    if not Path(result).exists() and Path(result).name == result:
        what = f"{result!r} is neither the folder of a run nor a shipped scenario"
        raise InputError.single("", "", what, did_you_mean(result, names))
    return False
