"""The last verdict on each run, on its way into the AdminComment of its job: squeue and sacct show
it where nobody looks at unicronctl.

One write per verdict at most, and one within PAUSE_SECONDS over all runs: of a run's verdicts that
wait only the newest is written. Slurm that does not answer is left alone for a while. Nothing
depends on it: what is lost with unicrond is written with the run's next verdict.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from unicrond.errors import Refused, Unavailable
from unicrond.model.decision import Decision

log = logging.getLogger(__name__)

PAUSE_SECONDS = 2.0
AWAY_SECONDS = 30.0  # while Slurm does not answer
MOST_WAITING = 1000

Tell = Callable[[int, str], Awaitable[None]]


class Verdicts:
    """`tell` writes one: run id, verdict; raises Refused or Unavailable."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._waiting: dict[int, str] = {}
        self._woken = asyncio.Event()

    def take(self, decision: Decision) -> None:
        """Those that are carried out: whoever only observes writes nothing."""
        if decision.run_id is None or not decision.acts:
            return
        self._waiting.pop(decision.run_id, None)
        self._waiting[decision.run_id] = decision.reason
        while len(self._waiting) > MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]
        self._woken.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._woken.wait()
            await asyncio.sleep(await self._next())

    async def _next(self) -> float:
        """Writes the one that waits longest; seconds until the next may be written."""
        run_id = next(iter(self._waiting))
        verdict = self._waiting.pop(run_id)
        pause = PAUSE_SECONDS
        try:
            await self._tell(run_id, verdict)
        except Refused as error:
            log.info("no verdict in the AdminComment of job %d: %s", run_id, error)
        except Unavailable as error:
            log.debug("no verdict in the AdminComment of job %d: %s", run_id, error)
            self._waiting.setdefault(run_id, verdict)
            pause = AWAY_SECONDS
        if not self._waiting:
            self._woken.clear()
        return pause
