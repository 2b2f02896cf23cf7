"""`unicronctl completion bash|zsh|fish`: what makes a shell complete our words. Only prints."""

from __future__ import annotations

from enum import Enum

# Re-exported there without saying so.
from typer.completion import completion_init, get_completion_script  # type: ignore[attr-defined]

PROGRAM = "unicronctl"
VARIABLE = "_UNICRONCTL_COMPLETE"


class Shell(str, Enum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Shell) -> None:
    """Print what makes a shell complete unicronctl's words, for its folder of completions."""
    print(get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell.value))


completion_init()  # the shells that typer knows, for when one of them asks
