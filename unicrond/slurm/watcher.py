"""SlurmWatcher: runs the watch process, hands its snapshots to the loop, starts it again.

A watcher that says nothing for longer than it may is killed. From then until the next look the
cluster is unknown, and so it is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence

from unicrond.link.tasks import reap
from unicrond.model.cluster import Snapshot
from unicrond.model.events import SnapshotTaken
from unicrond.ports import Clock
from unicrond.slurm.codec import Decoder

log = logging.getLogger(__name__)

LONGEST_LINE_BYTES = 256 * 1024 * 1024
GRACE_SECONDS = 5.0  # for starting Python, reading and writing
COMMANDS_A_LOOK = 5  # the first also asks for configuration, topology, and which jobs there are
MAX_BACKOFF_SECONDS = 30.0


class SlurmWatcher:
    """`argv` is the watch process, see `watch_command`; it may be silent for `allowance_seconds`
    beyond the pause that it announced, see `silence_allowed`."""

    def __init__(
        self,
        clock: Clock,
        emit: Callable[[SnapshotTaken], None],
        argv: Sequence[str],
        allowance_seconds: float,
    ) -> None:
        self._clock = clock
        self._emit = emit
        self._argv = list(argv)
        self._allowance_seconds = allowance_seconds

    async def run(self) -> None:
        """Until cancelled; then the process is gone too."""
        failures = 0
        while True:
            looks, trouble = await self._watch_once()
            failures = 0 if looks else failures + 1
            log.warning("slurm watcher ended looks=%d trouble=%r", looks, trouble)
            self._emit(SnapshotTaken(Snapshot(self._clock.now(), None, None, trouble)))
            await asyncio.sleep(min(2.0 ** min(failures, 5), MAX_BACKOFF_SECONDS))

    async def _watch_once(self) -> tuple[int, str]:
        """One process from start to end: how many looks it brought, and why it ended."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LONGEST_LINE_BYTES,
                start_new_session=True,  # a group of its own, to end scontrol with it
            )
        except OSError as error:
            return 0, f"the Slurm watcher cannot be started: {error}"
        try:
            return await self._read(process)
        finally:
            await _end(process)

    async def _read(self, process: asyncio.subprocess.Process) -> tuple[int, str]:
        assert process.stdout is not None  # it was asked for
        decoder, looks, pause = Decoder(), 0, 0.0
        while True:
            allowance = pause + self._allowance_seconds
            try:
                async with asyncio.timeout(allowance):
                    line = await process.stdout.readline()
                if not line:
                    return looks, "the Slurm watcher ended"
                look = decoder.decode(line)
            except TimeoutError:
                return looks, f"the Slurm watcher said nothing for {allowance:g} s"
            except ValueError as error:
                return looks, f"the Slurm watcher said nonsense: {error}"
            self._emit(SnapshotTaken(look.snapshot))
            looks, pause = looks + 1, look.pause_seconds


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await reap(process)


def watch_command(
    interval_seconds: float, timeout_seconds: float, prefix: Sequence[str] = ()
) -> list[str]:
    """The watch process by this Python."""
    options = ["--interval", str(interval_seconds), "--timeout", str(timeout_seconds)]
    return [sys.executable, "-m", "unicrond.slurm.watch", *options, "--", *prefix]


def silence_allowed(timeout_seconds: float) -> float:
    """How long one look may take when each command may take `timeout_seconds`."""
    return COMMANDS_A_LOOK * timeout_seconds + GRACE_SECONDS
