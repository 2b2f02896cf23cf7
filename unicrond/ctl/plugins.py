"""`unicronctl plugins install` copies slurm_plugins/ to where Slurm reads it. slurm.conf, and each
file that is not ours, stays the site's: what to write there is printed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from unicrond.ctl.show import DryRun
from unicrond.errors import BadInput

app = typer.Typer(no_args_is_help=True, help="Scripts for slurmd, slurmctld and sbatch.")

HOME = "/opt/unicron"  # as the scripts have it
HEALTH_CHECK = "HealthCheckProgram={path} HealthCheckInterval=60 HealthCheckNodeState=ANY"
SWITCHES = {
    "unicron-prolog": "slurm.conf: Prolog={path}",
    "unicron-epilog": "slurm.conf: Epilog={path}",
    "unicron-taskprolog": "slurm.conf: TaskProlog={path}",
    "unicron-healthcheck": f"slurm.conf: {HEALTH_CHECK} (nodes without unicron-sensor.service)",
    "cli_filter.lua": "slurm.conf: CliFilterPlugins=lua ({path} must lie beside slurm.conf)",
    "job_submit_unicron.lua": "job_submit.lua, the site's own: two lines, {path} tells which",
}


@app.command()
def install(
    into: Annotated[Path, typer.Option(help="A folder that all nodes have, such as /etc/slurm.")],
    home: Annotated[str, typer.Option(help="Where Unicron is installed on them.")] = HOME,
    dry_run: DryRun = False,
) -> None:
    """Copy the plugins into a folder, and print the lines that switch each of them on."""
    if not into.is_dir():
        raise BadInput(f"--into {into}: no such folder; make it, or give slurm.conf's own")
    if not home.startswith("/"):
        raise BadInput(f"--home {home}: must be a whole path, such as {HOME}")
    for name in SWITCHES:
        _install(source() / name, into / name, home, dry_run)
    print("To switch them on, each by itself:")
    for name, switch in SWITCHES.items():
        print(f"  {switch.format(path=into.absolute() / name)}")


def source() -> Path:
    """In a checkout, or where the distribution puts its data."""
    places = (
        Path(__file__).resolve().parents[2] / "slurm_plugins",
        Path(sys.prefix) / "share/unicron/slurm_plugins",
    )
    found = next((place for place in places if (place / "unicron-prolog").is_file()), None)
    if found is None:
        raise BadInput(f"the plugins are not installed here: looked in {places[0]}, {places[1]}")
    return found


def _install(file: Path, target: Path, home: str, dry_run: bool) -> None:
    if target.exists() and "unicron" not in target.read_text(errors="replace"):
        print(f"left alone: {target} is not ours; take what you need from {file}")
        return
    print(f"{'would write' if dry_run else 'wrote'} {target}")
    if dry_run:
        return
    partial = target.with_name(f".{target.name}.new")  # Slurm never sees half of it
    try:
        partial.write_text(file.read_text().replace(HOME, home))
        partial.chmod(0o644 if target.suffix == ".lua" else 0o755)
        partial.replace(target)
    except OSError as error:
        raise BadInput(f"--into {target.parent}: {error.strerror}: {error.filename}") from error
