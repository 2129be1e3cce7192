"""``simgpu completion``: the script with which a shell completes commands, options and names."""

from __future__ import annotations

import os
import re

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

_PROGRAM = "simgpu"
_VARIABLE = "_SIMGPU_COMPLETE"
_INSTALL = {
    "bash": "simgpu completion bash > ~/.local/share/bash-completion/completions/simgpu",
    "zsh": "simgpu completion zsh > a file called _simgpu in a folder of $fpath",
    "fish": "simgpu completion fish > ~/.config/fish/completions/simgpu.fish",
}
#: Bash begins a new word after these, wherever they stand.
_BREAKS = re.compile(r".*[:=]", re.DOTALL)
_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' response completion type value
    response=$(COMP_LINE="${COMP_LINE:0:$COMP_POINT}" %(complete_var)s=bash_complete "$1" 2>/dev/null)
    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
        if [[ $type == dir ]]; then
            compopt -o dirnames
        elif [[ $type == file ]]; then
            compopt -o default
        else
            COMPREPLY+=("$value")
            [[ $value == *[=:] ]] && compopt -o nospace
        fi
    done
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class Bash(BashComplete):
    """Bash, with words that hold ``:`` or ``=``: it takes them apart, and completes the last part alone."""

    source_template = _BASH
    _before = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)[1:]
        incomplete = "" if not words or (line[-1:].isspace() and not line.endswith(words[-1])) else words.pop()
        value = incomplete.partition("=")[2] if re.match(r"--[\w-]+=", incomplete) else incomplete
        broken = _BREAKS.match(value)
        self._before = broken.group() if broken else ""
        return words, incomplete

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{str(item.value).removeprefix(self._before)}"


class Fish(FishComplete):
    """Fish, with descriptions that hold commas: click's script ends them there."""

    def format_completion(self, item: CompletionItem) -> str:
        return super().format_completion(CompletionItem(item.value, item.type, (item.help or "").replace(",", ";")))


for _shell in (Bash, Fish):
    add_completion_class(_shell)


@click.command()
@click.argument("shell", type=click.Choice(list(_INSTALL)))
def completion(shell: str) -> None:
    """Print the script with which SHELL completes simgpu's commands, options and names.

    Its first comment says how to install it; it works in shells that are started afterwards. A shell that is open takes
    it at once with the line below.

    \b
    simgpu completion bash > ~/.local/share/bash-completion/completions/simgpu
    eval "$(simgpu completion bash)"
    """
    found = get_completion_class(shell)
    assert found is not None  # the shells that may be named are those of which there is one
    context = click.get_current_context().find_root()
    script = found(context.command, {}, _PROGRAM, _VARIABLE).source().strip()
    first, newline, rest = script.partition("\n") if script.startswith("#") else ("", "", script)
    click.echo(f"{first}{newline}# To install: {_INSTALL[shell]}\n{rest}")
