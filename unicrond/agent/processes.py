"""Processes on Linux: what is asked of prctl, and finding in /proc all that ranks left behind."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from unicrond.agent.environment import MARKER

_SET_PDEATHSIG = 1
_SET_NAME = 15
_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)
MAX_ENVIRON_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Stat:
    state: str
    parent: int
    session: int


@dataclass(frozen=True, slots=True)
class Stray:
    """A living process that belongs to a generation of this run on this node. `generation` is that
    of its session, else that in which its member, also named then, was started."""

    pid: int
    generation: int
    member: str = ""


def adopt_orphans() -> None:
    _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def set_name(name: str) -> None:
    _libc.prctl(_SET_NAME, name.encode()[:15], 0, 0, 0)


def dies_with(parent: int) -> Callable[[], None]:
    """To be called between fork and exec: the child gets SIGKILL when its parent dies."""

    def bind() -> None:
        _libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the prctl
            os._exit(125)

    return bind


def stat_of(pid: int) -> Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = text[text.rfind(")") + 2 :].split()
    return Stat(fields[0], int(fields[1]), int(fields[3]))


def strays(marker: str, sessions: dict[int, int]) -> list[Stray]:
    """Living processes whose environment has a marker that begins so, or in one of the sessions
    that ranks opened (session -> generation): a process may have overwritten its environment."""
    found = []
    uid = os.geteuid()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        try:
            if entry.stat().st_uid != uid:
                continue
        except OSError:
            continue
        stray = _stray(pid, marker, sessions)
        if stray:
            found.append(stray)
    return found


def _stray(pid: int, marker: str, sessions: dict[int, int]) -> Stray | None:
    stat = stat_of(pid)
    if stat is None or stat.state in "ZX" or pid == os.getpid():
        return None
    if stat.session in sessions:
        return Stray(pid, sessions[stat.session])
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as file:
            environment = b"\0" + file.read(MAX_ENVIRON_BYTES) + b"\0"
    except OSError:
        return None
    if f"\0{MARKER}={marker}".encode() not in environment:
        return None
    generation = _variable(environment, b"UNICRON_GENERATION")
    member = _variable(environment, b"UNICRON_MEMBER")
    return Stray(pid, int(generation) if generation.isdigit() else 0, member)


def _variable(environment: bytes, name: bytes) -> str:
    _, _, rest = environment.partition(b"\0" + name + b"=")
    return rest.split(b"\0", 1)[0].decode(errors="replace")


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def kill_group(group: int, number: int = signal.SIGKILL) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def children() -> list[int]:
    """Of this process, orphans that it adopted included."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found += map(int, (task / "children").read_text(encoding="ascii").split())
        except OSError:
            continue
    return found
