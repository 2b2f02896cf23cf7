"""Is a node there at all? A TCP connection to its slurmd port, asked from unicrond's own host."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """`passed`: something accepted. Otherwise `detail` has the words of the last try."""

    node: str
    passed: bool
    detail: str


async def probe(
    node: str, address: str, port: int, tries: int = 3, limit_seconds: float = 1.0
) -> ProbeResult:
    """Failed only when every try was refused or took longer than its limit."""
    said = ""
    for attempt in range(tries):
        try:
            await _connect(address, port, limit_seconds)
        except OSError as error:
            # asyncio's own time-out is an OSError without words
            said = str(error) or f"no answer within {limit_seconds:g} s"
        else:
            return ProbeResult(node, True, f"{address}:{port} accepted")
        if attempt + 1 < tries:
            await asyncio.sleep(limit_seconds / 4)
    return ProbeResult(node, False, f"{address}:{port}: {said} ({tries} tries)")


async def _connect(address: str, port: int, limit_seconds: float) -> None:
    async with asyncio.timeout(limit_seconds):
        _, writer = await asyncio.open_connection(address, port)
    writer.close()
    with contextlib.suppress(OSError):
        await asyncio.wait_for(writer.wait_closed(), limit_seconds)
