"""Finds the lab's processes in /proc, enters its namespaces, sends signals.

No process id is ever kept in a file: the init processes carry the lab's name in their command line,
and whoever lives in a node is known by the inode of its process namespace. So nothing can be stale.
"""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.errors import LabError

HEAD_MARK = "unicron-lab-head"
NODE_MARK = "unicron-lab-node"
PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """A process as the host sees it: the same one as long as pid and start are the same."""

    pid: int
    started_ticks: int
    inner_pid: int = field(compare=False)
    parent: int = field(compare=False)
    uid: int = field(compare=False)
    arguments: tuple[str, ...] = field(compare=False)

    @property
    def name(self) -> str:
        return Path(self.arguments[0]).name if self.arguments else ""


def every_process() -> Iterator[Process]:
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            process = read_process(int(entry.name))
            if process is not None:
                yield process


def read_process(pid: int) -> Process | None:
    """None for one that is gone by now, and for a zombie, which nothing can be done to."""
    try:
        arguments = tuple((PROC / str(pid) / "cmdline").read_text(errors="replace").split("\0"))
        status = (PROC / str(pid) / "status").read_text(errors="replace")
        stat = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    if fields["State"].startswith(("Z", "X")):
        return None
    inner_pid = int(fields["NSpid"].split()[-1])
    uid = int(fields["Uid"].split()[0])
    started_ticks = int(stat.rpartition(")")[2].split()[19])
    return Process(pid, started_ticks, inner_pid, int(fields["PPid"]), uid, arguments[:-1])


def environment(pid: int) -> dict[str, str]:
    try:
        text = (PROC / str(pid) / "environ").read_text(errors="replace")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def leads_its_group(process: Process) -> bool:
    try:
        return os.getpgid(process.pid) == process.pid
    except ProcessLookupError:
        return False


def carriers(lab: str) -> list[Process]:
    """The lab's inits, and whatever is about to become one: all that `down` has to end."""
    return [p for p in every_process() if p.uid == 0 and _mark(p, lab) is not None]


def head_init(lab: str) -> int | None:
    return next((p.pid for p in carriers(lab) if _is_init(p) and _mark(p, lab) == "head"), None)


def node_inits(lab: str) -> dict[str, int]:
    inits = ((p.pid, _mark(p, lab)) for p in carriers(lab) if _is_init(p))
    return {mark: pid for pid, mark in inits if mark is not None and mark != "head"}


def _is_init(process: Process) -> bool:
    return process.name == "sh" and process.inner_pid == 1


def _mark(process: Process, lab: str) -> str | None:
    """Which init of this lab the command line speaks of: the head's, a node's, or none."""
    words = process.arguments
    for index, word in enumerate(words[:-1]):
        if word == HEAD_MARK and words[index + 1] == lab:
            return "head"
        if word == NODE_MARK and words[index + 1] == lab and index + 2 < len(words):
            return words[index + 2]
    return None


def ready(init: int) -> bool:
    """An init is ready once it has made its mounts and left a mark in its own /run."""
    return (PROC / str(init) / "root/run/unicron-lab").exists()


def living_in(init: int) -> list[Process]:
    """The processes of this init's process namespace: a node's processes, not the head's."""
    space = _namespace(init)
    if space is None:
        return []
    pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
    inside = [pid for pid in pids if pid != init and _namespace(pid) == space]
    return [p for p in map(read_process, inside) if p is not None]


def _namespace(pid: int) -> int | None:
    try:
        return (PROC / str(pid) / "ns/pid").stat().st_ino
    except OSError:
        return None


def enter(init: int, argv: Sequence[str], *, only: Sequence[str] = ()) -> list[str]:
    """The command line that runs `argv` in the namespaces of this init."""
    spaces = only or ("mount", "pid", "net", "uts", "ipc")
    return ["nsenter", f"--target={init}", *(f"--{space}" for space in spaces), "--", *argv]


def as_user(user: str, argv: Sequence[str], variables: Mapping[str, str], folder: str) -> list[str]:
    """Nothing of the caller's environment comes along, and the command ends with its caller."""
    who = ["--reuid", user, "--regid", user, "--init-groups"] if user != "root" else []
    pairs = [f"{name}={value}" for name, value in variables.items()]
    return [
        "setpriv", *who, "--pdeathsig", "KILL", "--", "env", "-i", "-C", folder, *pairs, *argv,
    ]  # fmt: skip


def run(argv: Sequence[str], *, timeout_seconds: float = 30, text_in: str | None = None) -> str:
    """Run a command that has to succeed; its stdout."""
    try:
        done = subprocess.run(
            argv, input=text_in, stdin=subprocess.DEVNULL if text_in is None else None,
            capture_output=True, text=True, timeout=timeout_seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise LabError(f"no end after {timeout_seconds:g} s: {' '.join(argv)}") from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise LabError(f"{' '.join(argv)}: exit code {done.returncode}: {said}")
    return done.stdout


def run_here(argv: Sequence[str], *, timeout_seconds: float = 60) -> str:
    """The same for one that works on the lab's files from outside: it ends with us.

    Else it would go on writing after we were killed and `down` had removed everything. What works
    inside the lab ends with the lab.
    """
    return run(["setpriv", "--pdeathsig", "KILL", "--", *argv], timeout_seconds=timeout_seconds)


def send_signal(process: Process, number: signal.Signals) -> bool:
    """False if it ended before. The handle makes sure that no other process gets the signal."""
    with _handle(process) as handle:
        return handle is not None and _deliver(handle, number)


def kill_and_wait(process: Process, timeout_seconds: float = 20) -> None:
    """An init has ended once all of its namespace has; its command line is gone long before."""
    with _handle(process) as handle:
        if handle is None or not _deliver(handle, signal.SIGKILL):
            return
        deadline = time.monotonic() + timeout_seconds
        while not select.select([handle], [], [], 0.5)[0] and not _waits_for_zombies(process.pid):
            if time.monotonic() > deadline:
                raise LabError(f"process {process.pid} lives {timeout_seconds:g} s after SIGKILL")
    deadline = time.monotonic() + 1
    while (PROC / str(process.pid)).exists() and time.monotonic() < deadline:
        time.sleep(0.002)  # until it is reaped, if anybody does that here


def _waits_for_zombies(init: int) -> bool:
    """All of its namespace is dead and has let go of everything, but nobody reaps the dead.

    So it is in a container whose first process does not care for orphans.
    """
    process = read_process(init)
    return process is None or (not process.arguments and not living_in(init))


@contextlib.contextmanager
def _handle(process: Process) -> Iterator[int | None]:
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield handle if read_process(process.pid) == process else None
    finally:
        os.close(handle)


def _deliver(handle: int, number: signal.Signals) -> bool:
    try:
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    return True


def end_all(lab: str) -> None:
    """Kill the lab's inits and with them all that lives under them, and see them gone."""
    for _ in range(100):
        found = carriers(lab)
        for process in sorted(found, key=_is_init, reverse=True):
            kill_and_wait(process)
        if not found:
            return
        time.sleep(0.02)  # one that had just forked shows up in the next look
    raise LabError(
        f"lab {lab}: new processes keep appearing; does something make it at this moment?"
    )
