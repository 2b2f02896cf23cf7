"""Starts and ends the daemons of a lab, each as the account it has on a real cluster.

    head   mariadbd (mysql)   munged (munge)   slurmdbd, slurmctld (slurm)   unicrond (unicron)
    node   munged (munge)   slurmd, unicron-sensor (root)

unicrond runs under a loop that stands in for systemd's Restart=always, RestartSec=200ms.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from lab import processes
from lab.errors import LabError
from lab.hardware import KERNEL_LOG
from lab.processes import Process

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
VARIABLES = {
    "PATH": f"/opt/unicron/bin:/opt/unicron/env/bin:{SYSTEM_PATH}",
    "LANG": "C.UTF-8",
    "USE_LIBUV": "0",  # every torch has the other store, Debian 13 has no more
}
UNICROND_MARK = "unicron-lab-unicrond"
UNICROND_LOG = "var/log/unicron/unicrond.log"
UNICROND_SOCKET = "run/unicron/unicrond.sock"
UNICROND_SECONDS = 20.0
PAUSE = "sleep"

DATABASE = ["/usr/sbin/mariadbd", "--no-defaults", "--datadir=/var/lib/mysql",
            "--socket=/run/mysqld/mysqld.sock", "--pid-file=/run/mysqld/mysqld.pid",
            "--bind-address=127.0.0.1", "--port=3306", "--init-file=/var/lib/mysql-grants.sql",
            "--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=2",
            "--log-error=/var/log/mysql/error.log"]  # fmt: skip
MAKE_DATABASE = ["mariadb-install-db", "--no-defaults", "--datadir=/var/lib/mysql",
                 "--auth-root-authentication-method=socket", "--skip-test-db"]  # fmt: skip

# A process group of its own: when the daemon ends, what it leaves is killed, as a unit's would be.
UNICROND_LOOP = """while :; do
    setsid setpriv --reuid unicron --regid unicron --init-groups -- \
        /opt/unicron/bin/unicrond --config /etc/unicron/unicron.toml &
    wait $!
    kill -KILL -$! 2>/dev/null
    sleep 0.2
done
"""


def slurm_version() -> tuple[int, int]:
    text = processes.run(["slurmctld", "-V"])
    found = re.search(r"(\d+)\.(\d+)", text)
    if found is None:
        raise LabError(f"slurmctld -V says {text.strip()!r}: no version in it")
    return int(found[1]), int(found[2])


def start_munge(head: int) -> None:
    run_in(head, "munge", ["munged", "--num-threads=4"])


def start_munge_of(init: int, address: str) -> None:
    """A node has one of its own: what is sealed there says so."""
    own = [f"--{name}-file=/run/munge/{name}" for name in ("log", "seed")]
    run_in(init, "munge", ["munged", f"--origin={address}", *own])


def start_database(head: int) -> None:
    run_in(head, "mysql", MAKE_DATABASE)
    detach(head, "mysql", DATABASE, "/var/log/mysql/start.log")


def start_slurmdbd(head: int) -> None:
    """Once the database is there: else slurmdbd would look again after 5 s only."""
    socket = processes.PROC / str(head) / "root/run/mysqld/mysqld.sock"
    _retry("MariaDB", lambda: _expect(socket.exists(), "no socket yet"), pause_seconds=0.02)
    run_in(head, "slurm", ["slurmdbd"])


def fill_accounting(head: int, people: Sequence[str]) -> None:
    """slurmctld wants its cluster to be known; unicron gets the rights that unicrond needs."""
    add = ["sacctmgr", "--immediate", "--quiet", "add"]
    _retry("slurmdbd", lambda: run_in(head, "root", [*add, "cluster", "lab"]))
    run_in(head, "root", [*add, "account", "lab", "cluster=lab"])
    run_in(head, "root", [*add, "user", ",".join(people), "account=lab"])
    run_in(head, "root", [*add, "user", "unicron", "account=lab", "adminlevel=Admin"])


def start_slurmctld(head: int) -> None:
    if _named(head, "slurmctld"):
        raise LabError("slurmctld runs already")
    run_in(head, "slurm", ["slurmctld"])


def stop_slurmctld(head: int) -> Process:
    """SIGTERM, as a stop of the service does; back once it is gone."""
    found = _named(head, "slurmctld")
    if not found:
        raise LabError("slurmctld does not run")
    processes.send_signal(found[0], signal.SIGTERM)
    _retry("the end of slurmctld", lambda: _expect(not _named(head, "slurmctld"), "still there"))
    return found[0]


def start_slurmd(node: str, init: int) -> None:
    if _named(init, "slurmd"):
        raise LabError(f"slurmd of {node} runs already")
    run_in(init, "root", ["slurmd", "-N", node])


def kill_slurmd(node: str, init: int) -> list[Process]:
    found = _named(init, "slurmd")
    if not found:
        raise LabError(f"slurmd of {node} does not run")
    return [process for process in found if processes.send_signal(process, signal.SIGKILL)]


def start_sensor(node: str, init: int) -> None:
    """The root sensor of a node, over the node's own kernel log."""
    sensor = ["/opt/unicron/bin/unicron-sensor", "--node", node, "--kernel-log", KERNEL_LOG]
    detach(init, "root", sensor, f"/var/log/unicron/sensor-{node}.log")


def start_unicrond(head: int) -> None:
    if unicrond_loop(head) is not None:
        raise LabError("unicrond runs already")
    loop = ["/bin/sh", "-c", UNICROND_LOOP, UNICROND_MARK]
    detach(head, "root", loop, f"/{UNICROND_LOG}")


def await_unicrond(head: int) -> None:
    """Until it answers; one that does not start has said why. Its sockets may lie elsewhere."""
    root = Path(f"/proc/{head}/root")
    log = root / UNICROND_LOG
    deadline = time.monotonic() + UNICROND_SECONDS
    while not (root / UNICROND_SOCKET).is_socket() and time.monotonic() < deadline:
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        if said := next((line for line in lines if line.startswith("unicrond: ")), ""):
            raise LabError(f"unicrond does not start: {said.removeprefix('unicrond: ')}")
        time.sleep(0.1)
    _expect(unicrond_running(head), "unicrond does not start")


def stop_unicrond(head: int) -> None:
    """SIGTERM to the daemon with time to end, then whatever is left."""
    loop = unicrond_loop(head)
    if loop is None:
        return
    processes.send_signal(loop, signal.SIGSTOP)  # its children are to be seen, and no new one made
    daemon = _children(head, loop)
    processes.send_signal(loop, signal.SIGKILL)
    for process in daemon:
        processes.send_signal(process, signal.SIGTERM)
    deadline = time.monotonic() + 10
    while any(processes.read_process(p.pid) == p for p in daemon) and time.monotonic() < deadline:
        time.sleep(0.02)
    _kill_groups(daemon)


def unicrond_processes(head: int) -> tuple[Process, list[Process]]:
    """The loop that starts it, and the daemon."""
    loop = unicrond_loop(head)
    if loop is None:
        raise LabError("unicrond does not run")
    daemon = [p for p in _children(head, loop) if p.name != PAUSE]
    if not daemon:
        raise LabError("unicrond is between two starts; its log is /var/log/unicron/unicrond.log")
    return loop, daemon


def kill_unicrond(loop: Process, daemon: list[Process], *, keep_down: bool) -> list[Process]:
    if keep_down:
        processes.send_signal(loop, signal.SIGKILL)
    killed = [p for p in daemon if processes.send_signal(p, signal.SIGKILL)]
    if keep_down:
        _kill_groups(killed)
    if not killed:
        raise LabError("unicrond ended by itself just before; its log says why")
    return killed


def unicrond_loop(head: int) -> Process | None:
    marked = [p for p in processes.living_in(head) if p.arguments[3:] == (UNICROND_MARK,)]
    pids = {p.pid for p in marked}  # a fork of the loop looks like it until it runs its command
    return next((p for p in marked if p.parent not in pids), None)


def unicrond_running(head: int) -> bool:
    loop = unicrond_loop(head)
    return loop is not None and any(p.name != PAUSE for p in _children(head, loop))


def _children(head: int, parent: Process) -> list[Process]:
    return [p for p in processes.living_in(head) if p.parent == parent.pid]


def _kill_groups(leaders: Sequence[Process]) -> None:
    """Each was the leader of its group."""
    for leader in leaders:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGKILL)


def _named(init: int, name: str) -> list[Process]:
    return [p for p in processes.living_in(init) if p.name == name]


def run_in(init: int, user: str, argv: Sequence[str]) -> str:
    """For a command that ends by itself, such as a daemon that puts itself in the background."""
    command = processes.as_user(user, argv, VARIABLES, "/")
    return processes.run(processes.enter(init, command), timeout_seconds=60)


def detach(init: int, user: str, argv: Sequence[str], log: str) -> None:
    start = f'setsid "$@" </dev/null >>{log} 2>&1 &'
    run_in(init, user, ["/bin/sh", "-c", start, "start", *argv])


def _expect(truth: bool, otherwise: str) -> None:
    if not truth:
        raise LabError(otherwise)


def _retry(what: str, attempt: Callable[[], object], pause_seconds: float = 0.1) -> None:
    timeout_seconds = 60
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            attempt()
            return
        except LabError as error:
            if time.monotonic() > deadline:
                raise LabError(f"waited {timeout_seconds} s for {what}: {error}") from error
        time.sleep(pause_seconds)
