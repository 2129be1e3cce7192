"""The command line: one thin file per group of commands, each loaded only when it is called."""

from __future__ import annotations

import click

from simgpu.cli.group import LazyGroup
from simgpu.version import __version__

#: Where each command lives, and its line in ``simgpu --help``.
COMMANDS = {
    "run": ("simgpu.cli.run:run", "Run a scenario and report what happened."),
    "compare": ("simgpu.cli.run:compare", "Run a scenario's policies side by side, one line each."),
    "explain": ("simgpu.cli.explain:explain", "Tell why policies are slow or do not fit, and what would help."),
    "report": ("simgpu.cli.report:report", "Write a run as one page with a timeline to look into."),
    "epochs": ("simgpu.cli.epochs:epochs", "Run policies over epochs of training, as sparsity changes."),
    "check": ("simgpu.cli.check:check", "Run scenarios again and compare with stored timings."),
    "study": ("simgpu.cli.study:study", "Run networks under policies, beside published numbers."),
    "reproduce": ("simgpu.cli.reproduce:reproduce", "Simulate what papers claim, and show both numbers."),
    "sweep": ("simgpu.cli.sweep:sweep", "Run a scenario at many points, kept as they finish."),
    "bound": ("simgpu.cli.bound:bound", "How much memory an iteration needs at least, and what sets it."),
    "max-batch": ("simgpu.cli.max_batch:max_batch_", "The largest batch that fits under each policy."),
    "search": ("simgpu.cli.search:search", "How a policy decides about each feature map."),
    "nodes": ("simgpu.cli.nodes:nodes", "List the machines that ship with simgpu."),
    "policies": ("simgpu.cli.policies:policies", "List the memory policies and their parameters."),
    "scenarios": ("simgpu.cli.scenarios:scenarios", "List the scenarios and studies that ship with simgpu."),
    "trace": ("simgpu.cli.trace:trace", "Look at a recorded trace: show, check, stats."),
    "import": ("simgpu.cli.importing:import_", "Turn another tool's recording into a trace."),
    "record": ("simgpu.cli.record:record", "Run a PyTorch model for real and write its trace."),
    "record-node": ("simgpu.cli.record_node:record_node_", "Measure this machine's GPU and link as a node."),
    "zoo": ("simgpu.cli.zoo:zoo", "Model an iteration of a published network on a named GPU."),
    "validate": ("simgpu.cli.validate:validate", "Hold the simulation against real hardware."),
    "codec": ("simgpu.cli.codec:codec", "Compress arrays: what feature maps become in a codec."),
    "buddy": ("simgpu.cli.buddy:buddy", "Compress memory: how small it gets, and what overflows."),
    "solver": ("simgpu.cli.solver:solver", "Run small HPC solvers: arrays to profile, traces to run."),
    "completion": ("simgpu.cli.completion:completion", "Print the script that completes words in your shell."),
    "schema": ("simgpu.cli.schema:schema", "Print the JSON Schema of scenario, study or node files."),
}


@click.group(cls=LazyGroup, commands_elsewhere=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="simgpu", message="%(prog)s %(version)s")
def main() -> None:
    """Replay a recorded training iteration on a GPU node under a memory policy.

    \b
    simgpu run quickstart                              a first result
    simgpu run quickstart --set node.gpu.memory="1 GiB"
    simgpu trace show vgg11-cifar-cpu                  what was recorded
    simgpu COMMAND --help                              more about a command

    Ends with 0 when all went well, 1 when `simgpu check` finds a difference, 2 for bad input, 3 when every policy
    with limited memory ran out of it, 130 when interrupted. NO_COLOR=1 in the environment leaves colours out.
    """
