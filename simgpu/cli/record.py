"""``simgpu record``: run a PyTorch model for real and write its trace."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from simgpu.cli.screen import Screen, facts, progress
from simgpu.cli.trace_folder import folder_options, refuse_another
from simgpu.trace.folder import write_trace
from simgpu.trace.recorder import BUILT_IN_MODELS
from simgpu.trace.recorder import record as record_model


def _models_help() -> str:
    width = max(map(len, BUILT_IN_MODELS))
    return "\n".join(f"  {name:<{width}}  {what}" for name, what in BUILT_IN_MODELS.items())


@click.command(epilog=f"\b\nBuilt-in models:\n{_models_help()}")
@click.argument("model")
@folder_options
@click.option("--batch", type=click.IntRange(min=1), required=True, help="Samples in the iteration.")
@click.option("--device", default="cpu", show_default=True, metavar="cpu|cuda|cuda:N", help="Where it runs.")
@click.option("--repetitions", type=click.IntRange(min=1), default=5, show_default=True, help="Timed iterations.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of weights and data.")
def record(model: str, output: Path, force: bool, batch: int, device: str, repetitions: int, seed: int) -> None:
    """Run one training iteration of MODEL for real and write its trace.

    MODEL is a built-in name, or module.path:factory for a function of yours that returns a torch module. Needs
    PyTorch: pip install 'simgpu[record]'.

    \b
    simgpu record resnet20 --batch 64 -o traces/resnet20-mine
    simgpu record my_models:unet --batch 8 --device cuda -o traces/unet
    """
    refuse_another(output, force)
    sys.path.insert(0, str(Path.cwd()))  # module.path:factory may stand in the folder the user is in
    with progress(quiet=False) as say:
        say(f"recording {model}")
        trace = record_model(model, batch=batch, device=device, repetitions=repetitions, seed=seed)
        say(f"writing {output}")
        write_trace(trace, output)
    Screen().print(facts([*trace.facts(), ("written", str(output))]))
