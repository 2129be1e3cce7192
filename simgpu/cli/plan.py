"""``simgpu plan``: plans that run in PyTorch: make, show and check them."""

from __future__ import annotations

import click

from simgpu.cli.group import LazyGroup

_COMMANDS = {
    "make": ("simgpu.cli.plan_make:make", "Make a plan for a model and a budget (the default)."),
    "show": ("simgpu.cli.plan_show:show", "Show what a plan does and what it costs."),
    "check": ("simgpu.cli.plan_check:check", "Run a model with and without a plan, and compare."),
}


class _Plans(LazyGroup):
    """A group whose own arguments make a plan: ``simgpu plan MODEL`` is ``simgpu plan make MODEL``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.lazy:
            args = ["make", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=_Plans, sections={"Commands": _COMMANDS})
def plan() -> None:
    """Plan what a PyTorch model recomputes and offloads, so that it fits.

    \b
    simgpu plan gpt2-small --batch 8 --node v100 --budget 8GB -o plan.json
    simgpu plan show plan.json
    simgpu plan check plan.json gpt2-small
    """
