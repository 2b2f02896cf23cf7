"""The API's process, beside the loop and beside a standby."""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

RESTART_SECONDS = 1.0


async def keep_api(config: Path | None, holder: str = "") -> None:
    """Starts it again whenever it ends. `holder`: who this unicrond is where several may lead."""
    argv = [sys.executable, "-m", "unicrond.api", "--until-stdin-closes", "--holder", holder]
    if config is not None:
        argv += ["--config", str(config)]
    while True:
        process = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.PIPE)
        try:
            code = await process.wait()
            log.warning("the API ended with %s: starting it again", code)
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            assert process.stdin is not None
            process.stdin.close()
        await asyncio.sleep(RESTART_SECONDS)
