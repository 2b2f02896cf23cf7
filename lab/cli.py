"""`unicronctl lab up|down|status|exec|fault`, also `python -m lab`. Exit code 2: not possible."""

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lab.cluster import Lab, labs
from lab.errors import LabError
from lab.faults import FAULTS, Injection, Target
from lab.layout import LabSpec
from lab.status import LabStatus, NodeStatus

app = typer.Typer(
    help="A real Slurm cluster on this machine, to rehearse failures.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
errors = Console(stderr=True)

Name = Annotated[str, typer.Option("--name", help="Which lab; two names run side by side.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


@contextmanager
def _plain_errors() -> Iterator[None]:
    try:
        yield
    except LabError as error:
        errors.print(f"[red]lab:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(2) from None


@app.command()
def up(
    name: Name = "lab",
    nodes: Annotated[int, typer.Option(help="How many nodes.")] = 6,
    gpus: Annotated[int, typer.Option(help="GPUs a node, as Slurm counts them.")] = 8,
    switch: Annotated[
        int, typer.Option(help="Nodes on each switch of Slurm's topology; 0: none is told.")
    ] = 0,
    unicrond: Annotated[bool, typer.Option(help="Start unicrond on the head.")] = True,
    config: Annotated[Path | None, typer.Option(help="unicron.toml to use in the lab.")] = None,
) -> None:
    """Make a lab; what an interrupted `up` of that name left is removed first."""
    with _plain_errors():
        toml = _read(config) if config is not None else None
        spec = LabSpec(
            nodes=nodes, gpus_per_node=gpus, nodes_per_switch=switch, unicrond=unicrond,
            unicron_toml=toml,
        )  # fmt: skip
        with errors.status(f"lab {name}") as spinner:
            Lab(name).up(spec, tell=lambda text: spinner.update(f"lab {name}: {text}"))
        named = "" if name == "lab" else f" --name {name}"
        errors.print(
            f"lab {name} is up: {nodes} nodes of {gpus} GPUs. Try `lab exec{named} -- sinfo`.",
            soft_wrap=True,
        )


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise LabError(f"--config {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise LabError(f"--config {path}: not text: {error}") from None


@app.command()
def down(name: Name = "lab") -> None:
    """End a lab and remove all of it, also one that is half made."""
    with _plain_errors():
        Lab(name).down()


@app.command()
def status(name: Name = "lab", as_json: Json = False) -> None:
    """Nodes, cables and daemons of a lab."""
    with _plain_errors():
        seen = Lab(name).status()
        if as_json:
            print(json.dumps(dataclasses.asdict(seen)))
        else:
            _show(seen)


def _show(seen: LabStatus) -> None:
    table = Table(title=f"lab {seen.name}" + ("" if seen.complete else " (half made)"))
    for heading in ("node", "Slurm", "power", "cable", "slurmd", "processes"):
        table.add_column(heading)
    for node in seen.nodes:
        table.add_row(
            node.name, node.slurm_state or "unknown", "on" if node.powered else "[red]off[/]",
            _cable(node), "runs" if node.slurmd else "[red]gone[/]", str(node.processes),
        )  # fmt: skip
    console = Console()
    console.print(table)
    words = [f"{name} {'runs' if runs else '[red]gone[/]'}" for name, runs in seen.daemons.items()]
    console.print("head: " + ", ".join(words))
    others = [name for name in labs() if name != seen.name]
    if others:
        console.print(f"other labs: {', '.join(others)}")


def _cable(node: NodeStatus) -> str:
    if not node.link_up:
        return "[red]cut[/]"
    words = (["no management"] if node.management_cut else []) + (["slow"] if node.slow else [])
    return f"[yellow]{', '.join(words)}[/]" if words else "up"


@app.command("exec", context_settings={"ignore_unknown_options": True})
def exec_(
    command: Annotated[list[str] | None, typer.Argument(help="After --; a shell if none.")] = None,
    name: Name = "lab",
    user: Annotated[str, typer.Option("--user", "-u", help="root, alice, bob ...")] = "root",
    node: Annotated[str | None, typer.Option("--node", "-w", help="On this node.")] = None,
) -> None:
    """Run a command inside, or open a shell: on the head, or on a node."""
    with _plain_errors():
        terminal = {"TERM": os.environ["TERM"]} if "TERM" in os.environ else {}
        argv = Lab(name).command(command or ["bash"], user=user, node=node, env=terminal)
    sys.stdout.flush()
    os.execvp(argv[0], argv)


@app.command()
def fault(
    kind: Annotated[str, typer.Argument(help=", ".join(FAULTS))],
    name: Name = "lab",
    node: Annotated[str | None, typer.Option("--node", "-w", help="Such as n3.")] = None,
    job: Annotated[str | None, typer.Option("--job", "-j", help="Slurm job id.")] = None,
    rank: Annotated[int | None, typer.Option("--rank", "-r", help="Of that job.")] = None,
    keep_down: Annotated[bool, typer.Option(help="kill-unicrond: it stays down.")] = False,
    kilobit: Annotated[int, typer.Option(help="slow-link: rate, kbit/s.", min=8)] = 1000,
    delay: Annotated[int, typer.Option(help="slow-link: delay, ms.", min=0)] = 0,
    gpu: Annotated[int, typer.Option(help="xid, ecc, nvlink, gpu-lost, throttle.", min=0)] = 0,
    code: Annotated[int, typer.Option(help="xid: its number.", min=1)] = 79,
    percent: Annotated[float, typer.Option(help="straggler: how much slower it gets.")] = 50,
    folder: Annotated[str | None, typer.Option(help="disk-full, mend-disk: its path.")] = None,
    as_json: Json = False,
) -> None:
    """Break something, or mend it."""
    target = Target(node, job, rank, keep_down, kilobit, delay, gpu, code, percent, folder)
    with _plain_errors():
        done = Lab(name).fault(kind, target)
    print(json.dumps(dataclasses.asdict(done)) if as_json else _sentence(done))


def _sentence(done: Injection) -> str:
    when = datetime.fromtimestamp(done.wall_seconds, UTC).strftime("%H:%M:%S.%f")[:-3]
    where = f" on {done.node}" if done.node else ""
    hits = "".join(
        f"\n  process {hit.pid}"
        + (f" on {hit.node}" if hit.node else "")
        + (f", job {hit.job}" if hit.job else "")
        + (f", rank {hit.rank}" if hit.rank is not None else "")
        + f": {hit.command}"
        for hit in done.hits
    )
    return f"{when}Z {done.kind}{where}{hits}"
