"""`unicronctl completion bash|zsh|fish`: what makes a shell complete our words. Only prints."""

from __future__ import annotations

from enum import Enum

# Re-exported there without saying so.
from typer.completion import completion_init, get_completion_script  # type: ignore[attr-defined]

from unicrond.ctl.client import Answer, Client, settings_for
from unicrond.errors import UnicronError

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


def subjects(incomplete: str) -> list[str]:
    """Live runs and open incidents that begin so, for a shell; none where nobody answers."""
    return _begun(incomplete, [*_runs(), *_incidents()])


def runs(incomplete: str) -> list[str]:
    return _begun(incomplete, _runs())


def _runs() -> list[str]:
    return [str(run["run_id"]) for run in _items("/runs", live=True)]


def _incidents() -> list[str]:
    return [f"i{one['incident_id']}" for one in _items("/incidents", open=True)]


def _items(path: str, **wanted: object) -> list[Answer]:
    try:
        return Client(settings_for(None)).items(path, **wanted)
    except UnicronError:
        return []


def _begun(incomplete: str, words: list[str]) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]
