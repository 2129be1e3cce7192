"""``simgpu report``: a run as one page to open in a browser and to pass on."""

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
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the page here.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
def report(result: str, output: Path | None, quiet: bool) -> None:
    """Write RESULT as one page: its tables, and a timeline to zoom into and search.

    RESULT is a folder that `simgpu run` wrote, whose page is its report.html unless -o says otherwise; or a scenario,
    which is then run, and whose page is NAME.html. The page needs no network and nothing next to it. Each policy's
    timeline for https://ui.perfetto.dev is written next to it.

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
        click.echo(f"in the same folder, for https://ui.perfetto.dev: {', '.join(file.name for file in timelines)}")


def _is_scenario(result: str) -> bool:
    """A folder of a shipped scenario's name is the folder; `InputError` for a word that is neither."""
    if Path(result).is_dir():
        return False
    names = shipped_names("scenarios")
    if result in names or result.endswith((".yaml", ".yml")):
        return True
    if not Path(result).exists() and Path(result).name == result:
        what = f"no folder of a run and no shipped scenario is called {result!r}"
        raise InputError.single("", "", what, did_you_mean(result, names))
    return False
