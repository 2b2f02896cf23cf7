"""Faults of programs and disks: a rank hangs, raises, learns nothing or is slow; a folder is full.

hang exception nan    only a program can do that to itself: one that obeys, as examples/rehearse.py
                      does, looks for a word in /run/unicron-mishap-PID of its node
straggler             any process: it is stopped for a part of the time (lab/drag.py)
disk-full             any folder: a file system without a free block is mounted over it
"""

import signal
from pathlib import Path

from lab import drag, processes, services
from lab.errors import LabError
from lab.install import INSIDE
from lab.processes import Process

ORDERS = "/run/unicron-mishap-{pid}"
FULL = "size=4k,mode=1777"  # one block, which a file takes
FILLER = ".full"


def order(init: int, rank: Process, word: str) -> None:
    """For that process alone: the one that is started in its place knows nothing of it."""
    path = ORDERS.format(pid=rank.inner_pid)
    _inside(init, path).write_text(word)


def slow(init: int, rank: Process, percent: float) -> None:
    command = [
        "env", f"PYTHONPATH={INSIDE}/lib", f"{INSIDE}/env/bin/python", "-m", drag.MODULE,
        str(rank.inner_pid), str(percent),
    ]  # fmt: skip
    services.detach(init, "root", command, "/dev/null")


def mend_ranks(init: int) -> list[Process]:
    """Ranks that were slow go on at full speed."""
    drags = [p for p in processes.living_in(init) if drag.MODULE in p.arguments]
    return [p for p in drags if processes.send_signal(p, signal.SIGTERM)]


def fill(init: int, folder: str) -> None:
    """What the folder held is hidden until it is mended."""
    if not _inside(init, folder).is_dir():
        raise LabError(f"--folder {folder}: there is no such folder on that node")
    mount = ["mount", "-t", "tmpfs", "-o", FULL, "unicron-full", folder]
    processes.run(processes.enter(init, mount))
    try:
        _inside(init, f"{folder}/{FILLER}").write_bytes(b"\0" * 4096)
    except OSError as error:
        raise LabError(f"--folder {folder}: cannot be filled: {error}") from error


def empty(init: int, folder: str) -> None:
    processes.run(processes.enter(init, ["umount", folder]))


def _inside(init: int, path: str) -> Path:
    """As the host sees it."""
    return processes.PROC / str(init) / "root" / path.lstrip("/")
