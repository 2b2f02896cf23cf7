"""The daemon's side of the planner: what it asks, writes, and tells the loop."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from planningworld import NOW, STARTED, a_state

from db.knowledge import Knowledge, Learned
from unicrond.errors import StoreUnavailable
from unicrond.link.tasks import end_all
from unicrond.model.events import Event, PlanMade, PlannedRun
from unicrond.planning.client import Planning
from unicrond.planning.triggers import Cause, Trigger

WORKER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if any(t["what"] == "die once" for t in asked["triggers"]) and not open(sys.argv[1]).read():
        open(sys.argv[1], "w").write("died")
        sys.exit(1)
    move = {"run_id": 7, "pool": "p", "generation": 1, "before": 3, "nodes": 2}
    runs = [move] if any(t["what"] == "move" for t in asked["triggers"]) else []
    plan = {"choice": "stay", "reason": "nothing pays", "alternatives": [], "doc": "{}"}
    plan["runs"] = runs
    line = {"text": "as predicted", "run_id": 7, "incident_id": 12}
    plan = plan if asked["triggers"] else None
    print(json.dumps({"facts": [], "lines": [line], "plan": plan}), flush=True)
"""


class Books:
    """What was written, and a fault as of a full disk."""

    def __init__(self) -> None:
        self.known: list[Knowledge] = []
        self.fault = False

    def learn(self, known: Knowledge) -> None:
        if self.fault:
            raise StoreUnavailable("full")
        self.known.append(known)


class AClock:
    def now(self) -> float:
        return NOW


def drive(tmp_path: Path, books: Books, *triggers: Trigger) -> list[Event]:
    """What the loop is told until a plan is written, a few seconds at most."""
    told = list[Event]()

    async def run() -> None:
        memory = tmp_path / "memory"
        memory.touch()
        worker = [sys.executable, "-c", WORKER, str(memory)]
        planning = Planning(books, AClock(), worker, told.append, 0.0)
        planning.look(a_state())
        planning.note(triggers)
        task = asyncio.create_task(planning.run())
        async with asyncio.timeout(20):
            while not any(known.plans for known in books.known):
                await asyncio.sleep(0.02)
        assert await end_all([task])

    asyncio.run(run())
    return told


def test_a_plan_is_recorded_as_a_decision_that_is_not_carried_out(tmp_path: Path) -> None:
    books = Books()
    drive(tmp_path, books, STARTED, Trigger(Cause.SEV1, "n2 is silent", 7, 12, "n2", 1))
    known = next(known for known in books.known if known.plans)
    assert [(d.acts, d.run_id, d.incident_id) for d in known.decisions] == [
        (False, 7, 0), (False, 7, 12)
    ]  # fmt: skip
    *_, last = known.journal
    assert (last.text, last.kind, last.incident_id) == ("as predicted", "plan", 12)
    line = known.journal[0]
    assert line.text == "run 7 started: nothing pays"
    assert (line.run_id, line.at, line.kind) == (7, known.decisions[0].at, "plan")
    assert known.plans[0].cause == "SEV1"


def test_the_loop_is_told_of_a_plan_that_moves_a_run_and_of_no_other(tmp_path: Path) -> None:
    assert drive(tmp_path, Books(), STARTED) == []
    (event,) = drive(tmp_path, Books(), replace(STARTED, what="move"))
    assert event == PlanMade(NOW, NOW, "nothing pays", (PlannedRun(7, "p", 1, 3, 2),))


def test_what_the_store_does_not_take_is_written_later(tmp_path: Path) -> None:
    books = Books()
    planning = Planning(books, AClock(), [], print)
    books.fault = True
    for at in (1.0, 2.0):
        planning.write(Knowledge(learned=(Learned("a", "b", at, "{}"),)))
    assert books.known == []
    books.fault = False
    planning.write(Knowledge())
    assert [known.learned[0].at for known in books.known] == [1.0, 2.0]


def test_a_worker_that_dies_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    books = Books()
    drive(tmp_path, books, replace(STARTED, what="die once"))
    assert (tmp_path / "memory").read_text() == "died"


def test_a_worker_that_cannot_be_started_ends_nothing() -> None:
    async def run() -> None:
        planning = Planning(Books(), AClock(), ["/nowhere/python"], print, 0.01)
        task = asyncio.create_task(planning.run())
        await asyncio.sleep(0.1)
        assert not task.done()
        assert await end_all([task])

    asyncio.run(run())
