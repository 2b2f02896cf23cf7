"""Slows one process down: it is stopped for a part of each cycle. Runs in a node, until the process
ends or SIGTERM comes; whatever ends it, the process goes on.

    python -m lab.drag PID PERCENT      it takes that many per cent longer for what it computes
Sleep is no work: a process that only sleeps is not slowed by being stopped meanwhile.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence

CYCLE_SECONDS = 0.05
MODULE = "lab.drag"


def drag(pid: int, percent: float) -> None:
    """Raises ProcessLookupError once the process has ended."""
    handle = os.pidfd_open(pid)
    stopped = CYCLE_SECONDS * percent / (100 + percent)
    try:
        while True:
            signal.pidfd_send_signal(handle, signal.SIGSTOP)
            time.sleep(stopped)
            signal.pidfd_send_signal(handle, signal.SIGCONT)
            time.sleep(CYCLE_SECONDS - stopped)
    finally:
        signal.pidfd_send_signal(handle, signal.SIGCONT)


def main(arguments: Sequence[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with contextlib.suppress(ProcessLookupError):
        drag(int(arguments[0]), float(arguments[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
