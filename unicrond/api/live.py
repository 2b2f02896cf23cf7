"""Server-sent events: every line of the story as it is written, and a word whenever lists changed.

    id: 4711            number of the line; a client that comes back sends it as Last-Event-ID
    event: line         signal, decision, plan, action, outcome or note; data: a StoryLineOut
    event: changed      data: {"view": n}: what /cluster, /nodes, /runs ... answer is new
    event: gap          data: {"next": n}: more was missed than is sent again; ask /why

One thread reads the store for all listeners; each listener holds a place in the newest lines and
nothing else, so that a slow one costs nothing and is told of what it missed.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header
from fastapi.responses import StreamingResponse

from db.queries import Queries, StoryLine
from unicrond.api.callers import Seeing, Sight
from unicrond.api.models import StoryLineOut
from unicrond.api.view import View, Viewer
from unicrond.errors import StoreUnavailable, Unavailable
from unicrond.ports import JournalEntry

log = logging.getLogger(__name__)

MOST_LISTENERS = 64
MOST_LINES = 2_000  # that are kept, and so many are sent again
LINES_AT_ONCE = 500
QUIET_SECONDS = 15.0  # then a comment is sent, so that nobody on the way gives the connection up
LONGEST_SECONDS = 3600.0  # then the client comes back by itself


class Lines:
    """The newest lines of the journal. Filled by one thread, read in the server's loop."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._kept: deque[tuple[int, JournalEntry]] = deque(maxlen=MOST_LINES)
        self._last: int | None = None

    def look(self) -> None:
        try:
            if self._last is None:
                self._last = max(0, self._queries.last_line() - MOST_LINES)
            new = self._queries.lines_after(self._last, LINES_AT_ONCE)
        except StoreUnavailable as error:
            log.debug("no new lines: %s", error)
            return
        self._kept.extend(new)
        if new:
            self._last = new[-1][0]

    @property
    def last(self) -> int:
        return self._last or 0

    def after(self, number: int) -> tuple[bool, list[tuple[int, JournalEntry]]]:
        """Whether some before are missing, and the lines behind that number."""
        kept = list(self._kept)
        missing = bool(kept) and kept[0][0] > number + 1 and number < self.last
        return missing, [line for line in kept if line[0] > number]


class Listeners:
    """Wakes those who listen; they share the lines."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.view = View()
        self.count = 0
        self._woken: set[asyncio.Event] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def after_look(self, view: View) -> None:
        """Called in the viewer's thread."""
        self.lines.look()
        self.view = view
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for event in self._woken:
            event.set()

    async def listen(self, sight: Sight, place: int | None) -> AsyncIterator[bytes]:
        self._loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        self._woken.add(woken)
        self.count += 1
        try:
            async for words in self._told(sight, place, woken):
                yield words
        finally:
            self.count -= 1
            self._woken.discard(woken)

    async def _told(
        self, sight: Sight, place: int | None, woken: asyncio.Event
    ) -> AsyncIterator[bytes]:
        place = self.lines.last if place is None else min(place, self.lines.last)
        shown, ends = -1, asyncio.get_running_loop().time() + LONGEST_SECONDS
        yield b"retry: 2000\n\n"
        while asyncio.get_running_loop().time() < ends:
            missing, lines = self.lines.after(place)
            if missing:
                yield _event("gap", {"next": lines[0][0] if lines else place})
            for number, entry in lines:
                place = number
                if _seen(sight, self.view, entry):
                    out = StoryLineOut.of(StoryLine(entry)).model_dump(mode="json")
                    yield _event("line", out, number)
            if self.view.number != shown:
                shown = self.view.number
                yield _event("changed", {"view": shown})
            try:
                async with asyncio.timeout(QUIET_SECONDS):
                    await woken.wait()
            except TimeoutError:
                yield b": quiet\n\n"
            woken.clear()


def _seen(sight: Sight, view: View, entry: JournalEntry) -> bool:
    if sight.jobs and sight.nodes:
        return True
    run = view.run(entry.run_id) if entry.run_id is not None else None
    return run is not None and sight.sees_run(run)


def _event(name: str, data: Any, number: int | None = None) -> bytes:
    told = "" if number is None else f"id: {number}\n"
    return f"{told}event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def routes(queries: Queries, viewer: Viewer) -> APIRouter:
    router = APIRouter(tags=["live"])
    listeners = Listeners(Lines(queries))
    viewer.after_look = listeners.after_look

    @router.get(
        "/events",
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {}}, "description": "events"}},
    )
    async def events(
        sight: Seeing,
        last_event_id: Annotated[str, Header(max_length=20)] = "",
    ) -> StreamingResponse:
        """Every line of the story as it is written. Goes on behind Last-Event-ID where given."""
        if listeners.count >= MOST_LISTENERS:
            raise Unavailable(f"{MOST_LISTENERS} listen already: try again later")
        known = last_event_id.isascii() and last_event_id.isdigit()
        return StreamingResponse(
            listeners.listen(sight, int(last_event_id) if known else None),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    return router
