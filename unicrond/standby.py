"""A unicrond that waits until it leads: it answers questions, refuses commands, and does no more.

It has everything of the daemon but the loop, the link and Slurm. It reads its configuration anew
when it leads.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from pathlib import Path

from unicrond.api.control import ControlServer
from unicrond.apiprocess import keep_api
from unicrond.config import Settings
from unicrond.core.leader import Row
from unicrond.leading import Shared
from unicrond.link.tasks import end_all
from unicrond.notify import notify

log = logging.getLogger(__name__)

WATCHDOG_SECONDS = 2.0
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


async def stand_by(shared: Shared, settings: Settings, config: Path | None) -> Row | None:
    """The row once this unicrond leads; None when it was told to end."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(
        signal.SIGHUP, log.info, "a standby reads its configuration when it leads"
    )
    control = ControlServer(
        settings.control_socket,
        lambda *_: False,
        time.time,
        refuse=lambda: f"this unicrond stands by: {shared.leader}, give commands there",
    )
    await control.start()
    waiting = loop.create_task(shared.stand_by())
    beside = {loop.create_task(keep_api(config, shared.me)), loop.create_task(_watchdog())}
    told = loop.create_task(stop.wait())
    notify("READY=1\nSTATUS=stands by")
    try:
        await asyncio.wait({waiting, told, *beside}, return_when=asyncio.FIRST_COMPLETED)
        for part in (waiting, *beside):
            if part.done():
                part.result()  # what broke is told
        return waiting.result() if waiting.done() and not stop.is_set() else None
    finally:
        await end_all({waiting, told, *beside})
        await control.stop()
        for number in SIGNALS:
            loop.remove_signal_handler(number)


async def _watchdog() -> None:
    while True:
        notify("WATCHDOG=1")
        await asyncio.sleep(WATCHDOG_SECONDS)
