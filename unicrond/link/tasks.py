"""How the tasks and children of a process end. Python's asyncio alone; agents run on 3.10."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

TRIES = 20
TRY_SECONDS = 0.5


async def end_all(tasks: Iterable[asyncio.Task[object]]) -> bool:
    """Cancels them until all have ended; False when some would not.

    Once is not enough: before Python 3.12 `asyncio.wait_for` forgets a cancellation that comes
    together with what it waits for.
    """
    left = set(tasks)
    for _ in range(TRIES):
        for task in left:
            task.cancel()
        if not left:
            break
        _, left = await asyncio.wait(left, timeout=TRY_SECONDS)
    return not left


async def reap(process: asyncio.subprocess.Process) -> None:
    """Until a child that was killed is gone and its pipes are closed, also if this task is
    cancelled meanwhile. What the child started may hold the pipes: that is not waited for long."""
    ending = asyncio.ensure_future(process.communicate())
    cancelled = False
    for _ in range(TRIES):
        try:
            await asyncio.wait({ending}, timeout=TRY_SECONDS)
        except asyncio.CancelledError:
            cancelled = True
        if ending.done():
            break
    ending.cancel()
    if cancelled:
        raise asyncio.CancelledError
