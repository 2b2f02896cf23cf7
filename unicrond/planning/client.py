"""The daemon's side of the planner: notes what happens, asks the worker, writes what it answers.

A plan that moves a run goes to the loop as an event, like anything else that the core is told.
`look` is all that the loop pays for: it compares a few fields and never waits. One question is on
its way at a time; what happens meanwhile goes with the next. A worker that ends, or does not answer
in time, is started again; nothing but advice is late then.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from db.codec import CodecError, dumps, loads
from db.knowledge import Knowledge, Learned, Planned
from unicrond.core.state import State
from unicrond.errors import StoreUnavailable
from unicrond.link.tasks import reap
from unicrond.model.decision import Decision
from unicrond.model.events import Event, PlanMade
from unicrond.planning.stirs import Stirs
from unicrond.planning.triggers import Cause, Trigger, Triggers
from unicrond.planning.windows import Windows
from unicrond.planning.words import Ask, Plan, Reply
from unicrond.ports import Clock, JournalEntry

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # at iterations
LEARN_SECONDS = 60.0
LEAST_PAUSE_SECONDS = 1.0  # between questions that nothing but a stir calls for
PAUSE_BY_ANSWER = 5.0  # the same, in times of how long the last answer took
ANSWER_SECONDS = 300.0  # compiling may take a while, once
MOST_TRIGGERS = 100
MOST_UNWRITTEN = 100
LONGEST_LINE = 256 << 20
NO_INCIDENT = 0


class Books(Protocol):
    def learn(self, known: Knowledge) -> None:
        """Raises StoreUnavailable."""


class Planning:
    def __init__(
        self,
        books: Books,
        clock: Clock,
        command: Sequence[str],
        emit: Callable[[Event], object],
        pause_seconds: float = 5.0,
    ) -> None:
        """`emit`: to the loop. `pause_seconds`: before each start of the worker, which takes a core
        for a while."""
        self._books, self._clock, self._command = books, clock, command
        self._emit, self._pause_seconds = emit, pause_seconds
        self._windows, self._happenings, self._stirs = Windows(), Triggers(), Stirs()
        self._stirred, self._quiet_until = False, 0.0
        self._triggers: list[Trigger] = []
        self._unwritten: list[Knowledge] = []
        self._woken = asyncio.Event()
        self._look_due, self._learn_due = 0.0, 0.0
        self._asked_again = False  # what the last worker left unanswered

    def look(self, state: State) -> None:
        """After each turn of the loop."""
        self.note(self._happenings.look(state, self._clock.now()))
        now = time.monotonic()
        self._stirred |= self._stirs.look(state, self._clock.now())
        if self._stirred and now >= self._quiet_until:
            self._stirred = False
            self._woken.set()
        if now >= self._look_due:
            self._look_due = now + LOOK_SECONDS
            self._windows.look(state.live_runs())
        if now >= self._learn_due:
            self._learn_due = now + LEARN_SECONDS
            self._woken.set()

    def note(self, triggers: Sequence[Trigger]) -> None:
        """What calls for a plan; past a number of them the first count."""
        if triggers:
            self._triggers = [*self._triggers, *triggers][:MOST_TRIGGERS]
            self._woken.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._pause_seconds)
            try:
                await self._with_worker()
            except OSError as error:  # no memory, no more processes: advice can wait
                log.warning("the planner's process cannot be started: %s", error)

    async def _with_worker(self) -> None:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LONGEST_LINE,
        )
        try:
            await self._talk(process)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await reap(process)

    async def _talk(self, process: asyncio.subprocess.Process) -> None:
        """Until the worker ends or speaks nonsense."""
        assert process.stdin is not None and process.stdout is not None
        while True:
            await self._woken.wait()
            self._woken.clear()
            self.write(Knowledge(observations=self._windows.fetch()))
            triggers, self._triggers = tuple(self._triggers), []
            ask, began = Ask(self._clock.now(), triggers), time.monotonic()
            try:
                process.stdin.write(dumps(ask).encode() + b"\n")
                async with asyncio.timeout(ANSWER_SECONDS):
                    await process.stdin.drain()
                    line = await process.stdout.readline()
                reply = loads(Reply, line.decode())
            except (OSError, ValueError, TimeoutError, CodecError) as error:
                log.warning("the planner's process is started again: %s", error or "no answer")
                self._ask_again(triggers)
                return
            self._asked_again = False
            took = time.monotonic() - began
            self._quiet_until = began + took + max(LEAST_PAUSE_SECONDS, PAUSE_BY_ANSWER * took)
            self._take(reply, ask)

    def _ask_again(self, triggers: Sequence[Trigger]) -> None:
        """Once: it may be the question that ends the worker."""
        if triggers and not self._asked_again:
            self._asked_again = True
            self.note(triggers)

    def _take(self, reply: Reply, ask: Ask) -> None:
        if reply.trouble:
            log.warning("the planner learned nothing: %s", reply.trouble)
        now = self._clock.now()
        learned = tuple(Learned(fact.kind, fact.subject, now, fact.doc) for fact in reply.facts)
        lines = tuple(
            JournalEntry(now, "plan", of.text, of.run_id, of.incident_id, of.node, of.generation)
            for of in reply.lines
        )
        for entry in lines:
            log.info("%s", entry.text, extra={"run": entry.run_id})
        known = Knowledge(learned=learned, journal=lines)
        plan = reply.plan
        if plan is not None and ask.triggers:
            known = recorded(plan, ask.triggers, learned, now)
            for entry in known.journal:
                log.info("%s", entry.text, extra={"run": entry.run_id})
            known = replace(known, journal=(*known.journal, *lines))
        self.write(known)
        if plan is not None and any(run.nodes != run.before for run in plan.runs):
            self._emit(PlanMade(now, ask.at, plan.reason, plan.runs, plan.alternatives))

    def write(self, known: Knowledge) -> None:
        """What the store does not take now it gets later, within bounds."""
        self._unwritten = [*self._unwritten, known][-MOST_UNWRITTEN:]
        try:
            while self._unwritten:
                if self._unwritten[0] != Knowledge():
                    self._books.learn(self._unwritten[0])
                del self._unwritten[0]
        except StoreUnavailable as error:
            log.debug("what was learned waits: %s", error)  # the engine tells of it


def recorded(
    plan: Plan, triggers: Sequence[Trigger], learned: tuple[Learned, ...], at: float
) -> Knowledge:
    """The plan, and for each thing that happened a decision with a line in its story."""
    first = min(triggers, key=lambda t: t.cause is not Cause.SEV1)
    decisions, journal = list[Decision](), list[JournalEntry]()
    for t in triggers:
        text = f"{t.what}: {plan.reason}"
        decisions.append(
            Decision(
                at, t.incident_id or NO_INCIDENT, t.run_id, t.generation, plan.choice, text, False,
                plan.alternatives,
            )
        )  # fmt: skip
        journal.append(
            JournalEntry(at, "plan", text, t.run_id, t.incident_id, t.node, t.generation)
        )
    return Knowledge(
        learned=learned,
        plans=(Planned(at, first.cause.value, plan.doc),),
        decisions=tuple(decisions),
        journal=tuple(journal),
    )


def worker_command(config: Path | None) -> list[str]:
    command = [sys.executable, "-m", "unicrond.planning"]
    return [*command, "--config", str(config)] if config is not None else command
