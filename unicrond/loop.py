"""The loop: gathers events, makes a turn, acknowledges, sleeps until the next tick or event.

It knows nothing of Slurm or agents; it is given an engine, and edges put events into it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable

from unicrond.core.step import TICK_SECONDS
from unicrond.engine import Engine
from unicrond.figures import Timed
from unicrond.model.events import AgentBeat, AgentJoined, AgentLeft, Event, Tick
from unicrond.ports import Clock

log = logging.getLogger(__name__)

MAX_EVENTS = 200_000  # waiting; past it sources are told to say it again later
TURN_EVENTS = 5_000  # of one turn
GATHER_SECONDS = 0.02  # what agents say all the time is taken together, a turn costs the same
CLOCK_STEP_SECONDS = 0.5  # a smaller step does no harm

_PATIENT = (AgentBeat, AgentJoined, AgentLeft)

Acknowledge = Callable[[], None]


class SystemClock:
    def now(self) -> float:
        return time.time()


class Loop:
    """Everything here runs in one asyncio loop; `emit` is for edges in the same loop."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._waiting: deque[tuple[Event, Acknowledge | None]] = deque()
        self._unacknowledged: list[Acknowledge] = []
        self._woken = asyncio.Event()
        self._gathering: asyncio.TimerHandle | None = None
        self._last_turn_seconds = 0.0
        self._last_turn = time.monotonic()
        self._offset = clock.now() - self._last_turn  # of the clock, against one that nobody sets
        self.turns = Timed()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def emit(self, event: Event, acknowledge: Acknowledge | None = None) -> bool:
        """Takes an event; `acknowledge` is called once it is stored. False: there is no room."""
        if len(self._waiting) >= MAX_EVENTS:
            return False
        self._waiting.append((event, acknowledge))
        if not isinstance(event, _PATIENT):
            self._woken.set()
        elif self._gathering is None:
            loop = asyncio.get_running_loop()
            wait = max(GATHER_SECONDS, self._last_turn_seconds)  # the edges get as much time
            self._gathering = loop.call_later(wait, self._woken.set)
        return True

    async def run(self, after_turn: Callable[[], None]) -> None:
        """Until cancelled. A turn that raises is a broken invariant: it ends the daemon, loudly."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._until_tick()):
                    await self._woken.wait()
            began = time.monotonic()
            self._turn()
            self._last_turn_seconds = time.monotonic() - began
            self.turns.add(self._last_turn_seconds)
            after_turn()
            await asyncio.sleep(0)  # let the edges speak between two turns

    def _until_tick(self) -> float:
        return max(0.0, self._last_turn + TICK_SECONDS - time.monotonic())

    def _turn(self) -> None:
        now, mono = self._clock.now(), time.monotonic()
        moved = now - mono - self._offset
        if abs(moved) > CLOCK_STEP_SECONDS:
            self._take_turn(now - moved, mono)  # what waits was noted before
            log.warning("the clock of this machine was set by %+.1f s", moved)
            self._engine.core.clock_moved(moved)
            self._offset += moved
        else:
            self._take_turn(now, mono)

    def _take_turn(self, now: float, mono: float) -> None:
        events: list[Event] = []
        while self._waiting and len(events) < TURN_EVENTS:
            event, acknowledge = self._waiting.popleft()
            events.append(event)
            if acknowledge is not None:
                self._unacknowledged.append(acknowledge)
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        if self._waiting:
            self._woken.set()
        else:
            self._woken.clear()
            if mono >= self._last_turn + TICK_SECONDS:
                lag = mono - self._last_turn - 2 * TICK_SECONDS
                events.append(Tick(now, max(0.0, lag)))
                self._last_turn = mono
        if self._engine.turn(now, events):
            for acknowledge in self._unacknowledged:
                acknowledge()
            self._unacknowledged.clear()
