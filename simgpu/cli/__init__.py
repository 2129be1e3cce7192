"""The command line: one module per command, imported only when the command is called."""

from __future__ import annotations

import click

from simgpu.cli.group import LazyGroup
from simgpu.version import __version__

#: The commands of each section of ``simgpu --help``: by name, ("module:attribute", one-line description).
SECTIONS = {
    "Run and compare": {
        "run": ("simgpu.cli.run:run", "Run a scenario and report what happened."),
        "compare": ("simgpu.cli.run:compare", "Run a scenario's policies side by side, one line each."),
        "fit": ("simgpu.cli.fit:fit_", "Ask whether a model fits a GPU, and what each option costs."),
        "max-batch": ("simgpu.cli.max_batch:max_batch_", "Find the largest batch that fits under each policy."),
        "epochs": ("simgpu.cli.epochs:epochs", "Run policies in each epoch of a training, as sparsity changes."),
    },
    "Explain": {
        "explain": ("simgpu.cli.explain:explain", "Explain why policies are slow or do not fit, and what helps."),
        "memory": ("simgpu.cli.memory:memory", "Explain a PyTorch memory snapshot: peaks, OOM, what would help."),
        "memory-bound": (
            "simgpu.cli.bound:bound",
            "Compute how much memory an iteration needs at least.",
        ),
        "plan": ("simgpu.cli.plan:plan", "Plan what a PyTorch model recomputes and offloads."),
        "search": ("simgpu.cli.search:search", "Search the best action for each feature map under a policy."),
        "report": ("simgpu.cli.report:report", "Write a run as one HTML page with an interactive timeline."),
    },
    "Traces and models": {
        "record": ("simgpu.cli.record:record", "Record one training iteration of a PyTorch model as a trace."),
        "trace": ("simgpu.cli.trace:trace", "Show, check, summarize or import a trace."),
        "zoo": ("simgpu.cli.zoo:zoo", "Model an iteration of a published network or solver."),
    },
    "Studies": {
        "sweep": ("simgpu.cli.sweep:sweep", "Run a scenario at many points; resume where it stopped."),
        "study": ("simgpu.cli.study:study", "Run networks under policies and compare with published numbers."),
        "check": ("simgpu.cli.check:check", "Run scenarios again and compare with stored timings."),
    },
    "Papers and validation": {
        "reproduce": (
            "simgpu.cli.reproduce:reproduce",
            "Compare the claims of papers with simulation.",
        ),
        "validate": ("simgpu.cli.validate:validate", "Compare the simulation with real hardware."),
    },
    "Tools": {
        "list": ("simgpu.cli.list_group:list_", "List nodes, policies, scenarios; print schemas of their files."),
        "compression": ("simgpu.cli.compression:compression", "Compress arrays and memory: ratios, times, profiles."),
    },
}
#: Commands of earlier versions, by their old name: the current name.
RENAMED = {
    "bound": "memory-bound",
    "import": "trace import",
    "nodes": "list nodes",
    "policies": "list policies",
    "scenarios": "list scenarios",
    "schema": "list schema",
    "record-node": "validate node",
    "codec": "compression",
    "buddy": "compression profile",
    "solver": "zoo solve",
    "completion": "_SIMGPU_COMPLETE=bash_source simgpu",
}


@click.group(
    cls=LazyGroup, sections=SECTIONS, renamed=RENAMED, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="simgpu", message="%(prog)s %(version)s")
def main() -> None:
    """Replay a recorded training iteration on a GPU node under a memory policy.

    \b
    simgpu run quickstart                              run an example
    simgpu run quickstart --set node.gpu.memory="1 GiB"
    simgpu trace show vgg11-cifar-cpu                  show a recorded trace
    simgpu COMMAND --help                              help on a command

    Exit codes: 0 success, 1 `simgpu check` found a difference, 2 bad input, 3 every policy with limited memory ran
    out of memory, 130 interrupted. Set NO_COLOR=1 in the environment to disable colours.
    """
