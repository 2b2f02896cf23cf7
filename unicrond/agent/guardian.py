"""A small process beside the agent that kills the ranks when the agent is stuck, stopped or dead.

The agent ticks through a pipe. No tick for the lease: the ranks are killed, for the run may already
go on without this node. End of the pipe: the agent is gone; nothing of it is left behind.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import NoReturn

from unicrond.agent import processes

CLEANUP_SECONDS = 10.0
MOST_FILES = 4096


class Guardian:
    """The agent's end of the pipe."""

    def __init__(self, marker: str, timeout_seconds: float) -> None:
        """Forks; to be called before there is any thread or event loop."""
        reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self.pid = os.fork()
        if self.pid == 0:
            os.closerange(3, reading)
            os.closerange(reading + 1, MOST_FILES)
            _guard(reading, marker, timeout_seconds)
        os.close(reading)

    def tick(self) -> bool:
        """False when the guardian is gone."""
        try:
            os.write(self._writing, b".")
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True


def _guard(pipe: int, marker: str, timeout_seconds: float) -> NoReturn:
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it goes when the agent has gone
    processes.set_name("unicron-guard")
    wait = timeout_seconds
    while True:
        ready, _, _ = select.select([pipe], [], [], wait)
        if not ready:
            _kill_all(marker)
            wait = 0.2
        elif os.read(pipe, 4096):
            wait = timeout_seconds
        else:
            _clean_up(marker)


def _kill_all(marker: str) -> bool:
    found = processes.strays(marker, {})
    for stray in found:
        processes.kill(stray.pid)
    return bool(found)


def _clean_up(marker: str) -> NoReturn:
    deadline = time.monotonic() + CLEANUP_SECONDS
    while _kill_all(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    os._exit(0)
