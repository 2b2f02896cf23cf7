"""The end of the run: ranks first, then what unicrond and the wrapper must know, then the job.

every agent   ranks gone -> `ending` in its state, `finished` to unicrond -> waits to be let go
the leader    waits for the others -> completes the job if the batch host is gone -> lets all go
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable

from unicrond.agent import orders, slurm, views
from unicrond.agent.fellows import Fellows
from unicrond.agent.job import Job
from unicrond.agent.node import Node
from unicrond.agent.orders import Result
from unicrond.agent.settings import Settings
from unicrond.errors import Refused, SlurmUnavailable

log = logging.getLogger(__name__)
OTHERS_SECONDS = 12.0  # for the others to say that they end too
DRAIN_SECONDS = 3.0
HURRIED_DRAIN_SECONDS = 0.5
ON_THE_WIRE_SECONDS = 0.1
COMPLETE_TRIES = 60  # slurmctld may be away for a while
COMPLETE_RETRY_SECONDS = 10.0
KILL_WAIT_SHARE = 0.6  # of KillWait: for ranks to end by themselves when Slurm ends the job
TERMINATED = 128 + signal.SIGTERM


class Ending:
    """`finished` tells unicrond, `say` the user; `over` becomes the agent's exit code."""

    def __init__(
        self,
        job: Job,
        settings: Settings,
        node: Node,
        finished: Callable[[int, float], Awaitable[None]],
        say: Callable[[str], None],
    ) -> None:
        self.exit_code = views.NOT_ENDING
        self.over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._job = job
        self._settings = settings
        self._node = node
        self._finished = finished
        self._say = say
        self._begun = False
        self._let_go = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def let_go(self) -> None:
        self._let_go.set()

    def finish(self, exit_code: int) -> None:
        if not self.over.done():
            self.over.set_result(exit_code)

    # ------------------------------------------------------------ by Slurm

    def terminated(self) -> None:
        """scancel, requeue, time limit: everything must be gone before KillWait is over."""
        if self.exit_code != views.NOT_ENDING:
            self.finish(self.exit_code)
        elif self._task is None:
            log.info("told by Slurm to end")
            self._node.state.closing = True
            self._task = asyncio.get_running_loop().create_task(self._terminate())

    async def _terminate(self) -> None:
        left = await self._node.close(KILL_WAIT_SHARE * self._job.facts.kill_wait_seconds)
        if left:
            log.error("%s", left)
        await self._finished(TERMINATED, HURRIED_DRAIN_SECONDS)
        self.finish(TERMINATED)

    # ------------------------------------------------------------ by order

    async def end_run(self, exit_code: int, reason: str, fellows: Fellows) -> Result:
        if self._begun:
            return orders.done()
        self._begun = True
        log.info("the run ends with exit code %d: %s", exit_code, reason)
        if fellows.leads:
            self._say(f"the run ends with exit code {exit_code}: {reason}")
        left = await self._node.close(self._settings.stop_grace_seconds)
        if left:
            self._begun = False
            return orders.failed(left)
        self.exit_code = exit_code
        if fellows.leads or self._job.node == self._job.batch_host:
            await asyncio.to_thread(self._leave_verdict, exit_code)
        args = {"exit_code": exit_code, "reason": reason}
        fellows.broadcast_end(f"a:{self._job.agent}:end", args)
        fellows.tell()
        self._task = asyncio.get_running_loop().create_task(self._leave(exit_code, fellows))
        return orders.done()

    def _leave_verdict(self, exit_code: int) -> None:
        """For the wrapper: srun's own code also counts agents that were killed and replaced."""
        try:
            (self._job.output_folder / "verdict").write_text(f"{exit_code}\n", encoding="utf-8")
        except OSError as error:
            log.warning("the verdict cannot be left for the wrapper: %s", error)

    async def _leave(self, exit_code: int, fellows: Fellows) -> None:
        await self._finished(exit_code, DRAIN_SECONDS)
        deadline = time.monotonic() + OTHERS_SECONDS
        while time.monotonic() < deadline and not self._let_go.is_set():
            if fellows.leads and fellows.all_end(self._settings.lease_seconds):
                break
            await asyncio.sleep(0.05)
        if fellows.leads:
            await self._complete_without_batch_host(exit_code, fellows)
            fellows.let_go()
            await asyncio.sleep(ON_THE_WIRE_SECONDS)
        self.finish(exit_code)

    async def _complete_without_batch_host(self, exit_code: int, fellows: Fellows) -> None:
        """Without it the job would never end."""
        host = self._job.batch_host
        if host == self._job.node or fellows.ending(host):
            return
        for _ in range(COMPLETE_TRIES):
            log.warning("the batch host %s is gone: completing the job from here", host)
            try:
                await self._complete(exit_code)
            except (Refused, SlurmUnavailable) as error:
                log.error("%s", error)
                await asyncio.sleep(COMPLETE_RETRY_SECONDS)
                continue
            return

    async def _complete(self, exit_code: int) -> None:
        """Only this start of the job: it may have been requeued meanwhile."""
        job = self._job
        held = await slurm.standing(job.run_id, job.restarts, job.node)
        if held is not slurm.Standing.HELD:
            return
        try:
            await asyncio.to_thread(slurm.complete, job.run_id, exit_code)
        except Refused as error:
            log.error("%s; cancelling the job instead", error)
            await slurm.cancel(job.run_id)
