"""`unicronctl doctor`: is this installation well, and what mends it where it is not.

Each check looks at one thing and gives findings; none changes anything. Exit code 1 when something
is wrong; what is merely odd is a warning. Touches: Slurm's commands, MUNGE, the database, /proc.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import stat
import sys
import time
from calendar import timegm
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import typer
from rich.text import Text

from unicrond import __version__
from unicrond.config import DEFAULT_PATH, Settings
from unicrond.ctl.client import Answer, Client, settings_for
from unicrond.ctl.show import AsJson, console, print_json, printable
from unicrond.errors import BadInput, UnicronError
from unicrond.packages import foreign
from unicrond.slurm.command import SlurmCommand

State = Literal["ok", "warning", "wrong"]
Run = Callable[..., str]

COMMAND_SECONDS = 5.0
OLDEST_SLURM = (22, 5)
FREE_MEMORY_BYTES = 1 << 30
FREE_DISK_BYTES = 1 << 30
APART_SECONDS = 2.0  # clocks; slurmctld tells whole seconds
STYLES = {"ok": "green", "warning": "yellow", "wrong": "bold red"}
USER = "unicron"


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    state: State
    says: str
    remedy: str = ""


def doctor(context: typer.Context, as_json: AsJson = False) -> None:
    """Check configuration, rights, clocks, database, versions and memory; say how to mend."""
    found = list(findings(context.obj))
    if as_json:
        print_json([asdict(one) for one in found])
    else:
        _tell(found)
    raise typer.Exit(1 if any(one.state == "wrong" for one in found) else 0)


def findings(config: Path | None, run: Run | None = None) -> Iterator[Finding]:
    """`config`: named by the caller, None for the usual place. `run`: one of Slurm's commands."""
    run = run or SlurmCommand(timeout_seconds=COMMAND_SECONDS).run
    yield from packages(foreign())
    try:
        settings = settings_for(config)
    except BadInput as error:
        yield Finding("configuration", "wrong", str(error), "mend the file that is named")
        return
    yield from configuration(config or DEFAULT_PATH, settings)
    yield from slurm(run)
    yield from rights(run)
    yield from companions(run, settings)
    yield from munge(run)
    yield from clocks(run, time.time())
    yield from database(settings.database_url)
    yield from daemon(lambda: Client(settings).get("/health"))
    yield from memory(Path("/proc/meminfo").read_text())
    yield from disk(settings.database_url)


def packages(strangers: dict[str, str]) -> Iterator[Finding]:
    python = ".".join(map(str, sys.version_info[:3]))
    if not strangers:
        yield Finding("versions", "ok", f"unicronctl {__version__} on Python {python}")
    for name, place in strangers.items():
        yield Finding(
            "versions", "wrong", f"the package {name} is taken from {place or 'nowhere'}",
            "give unicrond an environment of its own, without PYTHONPATH",
        )  # fmt: skip


def configuration(path: Path, settings: Settings) -> Iterator[Finding]:
    secret = urlsplit(settings.database_url).password is not None or settings.notify_webhook
    try:
        mode = path.stat().st_mode
    except PermissionError:
        mode = None
    except FileNotFoundError:
        yield Finding(
            "configuration", "warning", f"{path} is not there: defaults hold", f"write {path}"
        )
        return
    if mode is None or not os.access(path, os.R_OK):
        yield Finding(
            "configuration", "warning", f"{path} may not be read by you: defaults were checked",
            "run this as root or as unicrond's user",
        )  # fmt: skip
    elif secret and mode & stat.S_IROTH:
        yield Finding(
            "configuration", "wrong", f"{path} holds a secret and everybody may read it",
            f"chmod 640 {path}; chgrp {USER} {path}",
        )  # fmt: skip
    else:
        yield Finding("configuration", "ok", f"{path}: cluster {settings.cluster}")


def slurm(run: Run) -> Iterator[Finding]:
    try:
        said = run("scontrol", "--version")
        run("scontrol", "ping")
    except UnicronError as error:
        yield Finding(
            "slurm", "wrong", _last_words(error),
            "this host needs Slurm's commands, its slurm.conf and a way to slurmctld",
        )  # fmt: skip
        return
    version = re.search(r"(\d+)\.(\d+)[\d.]*", said)
    if version is None or (int(version[1]), int(version[2])) < OLDEST_SLURM:
        yield Finding(
            "slurm", "wrong", f"{said.strip()} is older than 22.05", "upgrade Slurm's commands here"
        )
    else:
        yield Finding("slurm", "ok", f"{said.strip()}, slurmctld answers")


def _last_words(error: UnicronError) -> str:
    """Slurm's commands say much before they say why."""
    command, _, said = str(error).partition(": ")
    return f"{command}: {re.split(r'(?:error|fatal): ', said)[-1]}" if said else command


def rights(run: Run) -> Iterator[Finding]:
    """Of unicrond's own account; without one, of whoever asks."""
    name = USER if _exists(USER) else pwd.getpwuid(os.getuid()).pw_name
    try:
        level = run("sacctmgr", "-nP", "show", "user", f"name={name}", "format=adminlevel").strip()
    except UnicronError as error:
        yield Finding(
            "rights", "warning", f"Slurm does not tell {name}'s AdminLevel: {_last_words(error)}",
            "is slurmdbd configured and up? Without it only root and SlurmUser may drain nodes",
        )  # fmt: skip
        return
    if level.lower() == "administrator":
        yield Finding("rights", "ok", f"{name} is {level}")
    elif level.lower() == "operator":
        yield Finding(
            "rights", "warning", f"{name} is {level}: draining nodes needs Admin",
            f"sacctmgr modify user {name} set adminlevel=Admin",
        )  # fmt: skip
    else:
        yield Finding(
            "rights", "wrong", f"{name} has no AdminLevel in Slurm: nothing could be healed",
            f"sacctmgr add user {name} account=root adminlevel=Admin",
        )  # fmt: skip


def companions(run: Run, settings: Settings) -> Iterator[Finding]:
    """What they are to be submitted with is there."""
    asked = {
        "companion_qos": ("sacctmgr", "-nP", "show", "qos", "format=name"),
        "companion_partition": ("sinfo", "--all", "--noheader", "--format=%R"),
    }
    for key, words in asked.items():
        name = getattr(settings, key)
        if not name:
            continue
        try:
            known = run(*words).split()
        except UnicronError as error:
            yield Finding("companions", "warning", f"{key} was not checked: {_last_words(error)}")
            continue
        if name in known:
            yield Finding("companions", "ok", f"{key} {name} is there")
        else:
            yield Finding(
                "companions", "wrong", f"{key} {name} is not known to Slurm",
                f"one of {', '.join(known)}, or leave it out",
            )  # fmt: skip


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def munge(run: Run) -> Iterator[Finding]:
    try:
        run("munge", "-n")
    except UnicronError as error:
        yield Finding(
            "munge", "wrong", str(error), "start munged: agents prove with it who they are"
        )
    else:
        yield Finding("munge", "ok", "munged answers")


def clocks(run: Run, now: float) -> Iterator[Finding]:
    """slurmctld's clock against ours; its commands are asked in UTC."""
    try:
        said = run("scontrol", "show", "config")
    except UnicronError:
        return  # told by slurm()
    theirs = re.search(r"as of (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", said)
    if theirs is None:
        yield Finding("clocks", "warning", "slurmctld does not tell its time")
        return
    apart = abs(timegm(time.strptime(theirs[1], "%Y-%m-%dT%H:%M:%S")) + 0.5 - now)
    if apart > APART_SECONDS:
        yield Finding(
            "clocks", "wrong", f"slurmctld's clock is {apart:.0f} s from this host's",
            "run an NTP client, such as chrony, on both",
        )  # fmt: skip
    else:
        yield Finding("clocks", "ok", "slurmctld's clock agrees with this host's")


def database(url: str) -> Iterator[Finding]:
    from unicrond.ctl import tables  # slow to import

    shown = tables.shown(url)
    try:
        found = tables.found(url)
    except UnicronError as error:
        yield Finding(
            "database", "wrong", f"{shown}: {error}",
            "is it up, and may you reach it? `unicronctl db upgrade` makes the tables",
        )  # fmt: skip
        return
    if found == tables.NEEDED:
        yield Finding("database", "ok", f"{shown} is at revision {found}")
    else:
        yield Finding(
            "database", "wrong",
            f"{shown} is at revision {found or 'none'}, this program needs {tables.NEEDED}",
            "unicronctl db upgrade, after a backup; or upgrade this program where it is older",
        )  # fmt: skip


def daemon(health: Callable[[], Answer]) -> Iterator[Finding]:
    try:
        answer = health()
    except UnicronError as error:
        yield Finding(
            "unicrond", "wrong", str(error), "systemctl start unicrond; journalctl -u unicrond"
        )
        return
    if answer["loop"] != "alive":
        yield Finding(
            "unicrond", "wrong", f"its loop is {answer['loop']}", "journalctl -u unicrond"
        )
    elif answer["slurm"] != "ok":
        yield Finding("unicrond", "wrong", f"Slurm, as it sees it: {answer['slurm']}",
                      "journalctl -u unicrond")  # fmt: skip
    elif answer["version"] != __version__:
        yield Finding(
            "unicrond", "warning", f"it is {answer['version']}, this is unicronctl {__version__}",
            "restart unicrond after an upgrade; training does not notice",
        )  # fmt: skip
    else:
        agents = answer["agents_connected"]
        yield Finding("unicrond", "ok", f"alive, mode {answer['mode']}, {agents} agents connected")


def memory(meminfo: str) -> Iterator[Finding]:
    told = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)
    if told is not None:
        free = int(told[1]) * 1024
        yield _room("memory", "free memory", free, FREE_MEMORY_BYTES, "end what takes it")


def disk(url: str) -> Iterator[Finding]:
    parsed = urlsplit(url)
    if not parsed.scheme.startswith("sqlite"):
        return
    folder = Path(parsed.path[1:]).parent
    if folder.exists():
        free = shutil.disk_usage(folder).free
        remedy = "make room, or keep less: history_days"
        yield _room("disk", f"free in {folder}", free, FREE_DISK_BYTES, remedy)


def _room(check: str, what: str, free: int, least: int, remedy: str) -> Finding:
    said = f"{free / 2**30:.1f} GiB {what}"
    if free < least:
        return Finding(check, "wrong", f"{said}; 1 GiB is the least", remedy)
    return Finding(check, "ok", said)


def _tell(found: Iterable[Finding]) -> None:
    out = console()
    for one in found:
        first, *more = printable(one.says.replace("\n", " | ")).split(" | ")
        out.print(Text.assemble((f"{one.state:<8}", STYLES[one.state]), f"{one.check:<14}{first}"))
        for line in more:
            out.print(f"{'':22}{line}")
        if one.remedy:
            out.print(Text(f"{'':22}mend: {one.remedy}", style="dim"))
