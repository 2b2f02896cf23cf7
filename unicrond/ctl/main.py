"""The commands together, and how errors end: exit code 1 refused or unavailable, 2 wrong words."""

from __future__ import annotations

import sys
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from typer.main import get_command

from unicrond import __version__
from unicrond.ctl import database, incident, lists, model, node, plugins, run
from unicrond.ctl.classify import classify, diagnose
from unicrond.ctl.client import Client, settings_for
from unicrond.ctl.completion import PROGRAM, completion
from unicrond.ctl.doctor import doctor
from unicrond.ctl.mode import mode
from unicrond.ctl.plan import plan
from unicrond.ctl.proofkey import proof_key
from unicrond.ctl.reliability import reliability
from unicrond.ctl.report import report
from unicrond.ctl.simulate import simulate
from unicrond.ctl.status import status
from unicrond.ctl.trust import pause, trust, unpause
from unicrond.ctl.why import why
from unicrond.errors import BadInput, UnicronError

app = typer.Typer(
    name="unicronctl",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


WITHOUT_SETTINGS = ("lab", "proof-key", "completion", "classify", "diagnose")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"unicronctl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help="unicron.toml")] = None,
    _: Annotated[
        bool,
        typer.Option("-V", "--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Ask and steer unicrond, which heals the training runs of a Slurm cluster."""
    if context.invoked_subcommand == "doctor":
        context.obj = config  # that it cannot be read is what doctor tells
    elif context.invoked_subcommand not in WITHOUT_SETTINGS:
        context.obj = settings_for(config)


COMMANDS = (
    status, lists.runs, lists.incidents, why, mode, lists.nodes, lists.allocations, lists.detectors,
    classify, diagnose, plan, simulate, reliability, doctor, completion,
    report, trust, pause, unpause, node.audit, proof_key,
)  # fmt: skip
for command in COMMANDS:
    app.command()(command)
app.add_typer(database.app, name="db")
app.add_typer(incident.app, name="incident")
app.add_typer(model.app, name="model")
app.add_typer(node.app, name="node")
app.add_typer(plugins.app, name="plugins")
app.add_typer(run.app, name="run")


@app.command()
def top(
    context: typer.Context,
    seconds: Annotated[
        float, typer.Option("-d", "--delay", min=0.5, max=60, help="Seconds between two looks.")
    ] = 2.0,
) -> None:
    """Watch runs, incidents and nodes; Enter tells the story of a row."""
    from unicrond.ctl.top import Top  # slow to import

    Top(Client(context.obj), seconds).run()


def lab(context: typer.Context) -> None:
    """A real Slurm cluster on this machine, to rehearse failures."""
    from lab.cli import app as lab_app  # slow to import, and not installed everywhere

    lab_app(args=context.args, prog_name="unicronctl lab")


if find_spec("lab") is not None:
    app.command(
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(lab)


unicronctl = cache(partial(get_command, app))


def main() -> None:
    try:
        unicronctl()(prog_name=PROGRAM)
    except UnicronError as error:
        print(f"unicronctl: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, BadInput) else 1)
