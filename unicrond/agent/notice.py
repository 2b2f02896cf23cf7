"""Slurm's notice that the job ends soon: `sbatch --signal=USR1@120`, before a time limit or, where
the site has it so, before a preemption.

A rank that handles the signal (Lightning, submitit, a script of the user's) is told and left to
requeue the job: two who requeue fight. Where none does, the run's leader requeues it.
"""

from __future__ import annotations

import logging
import os
import re
import signal
from collections.abc import Callable, Collection
from pathlib import Path

log = logging.getLogger(__name__)
SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)


class Notice:
    """`ranks`: their process ids here; `requeue` is called with the reason, at most once."""

    def __init__(
        self,
        ranks: Callable[[], Collection[int]],
        leads: Callable[[], bool],
        requeue: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        self._ranks = ranks
        self._leads = leads
        self._requeue = requeue
        self._say = say
        self._requeued = False

    def heard(self, number: signal.Signals) -> None:
        told = [pid for pid in self._ranks() if catches(pid, number)]
        for pid in told:
            _send(pid, number)
        log.warning("notice %s: %d ranks of this node handle it", number.name, len(told))
        if not self._leads() or self._requeued:
            return
        if told:
            self._say(
                f"{number.name}: the program handles it by itself, as Lightning and submitit do;"
                " Unicron stands aside and requeues nothing"
            )
            return
        self._requeued = True
        self._requeue(f"{number.name}: the job ends soon; requeueing it")


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for it; without one the signal would end it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    found = re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
