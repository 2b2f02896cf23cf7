"""The planner beside a simulated cluster."""

from __future__ import annotations

import json
from typing import Any

from world import World

from db.codec import dumps, loads
from db.knowledge import Knowledge, Learned
from db.queries import Queries
from db.store import SqlStore
from unicrond.model.events import PlanMade
from unicrond.planning.client import recorded
from unicrond.planning.learning import Learning
from unicrond.planning.stirs import Stirs
from unicrond.planning.triggers import Cause, Triggers
from unicrond.planning.windows import Windows
from unicrond.planning.words import Ask, Reply


class Beside:
    """What the daemon does after each turn, with the worker in this process. `acts`: the core is
    told of plans."""

    def __init__(self, store: SqlStore, queries: Queries, acts: bool = False) -> None:
        self._acts = acts
        self._store, self._learning = store, Learning(queries)
        self._windows, self._triggers, self._stirs = Windows(), Triggers(), Stirs()
        self.plans: list[tuple[Cause, dict[str, Any]]] = []
        self.at: dict[float, dict[str, Any]] = {}  # the same, by time
        self._learn_due = 0.0

    def __call__(self, world: World) -> None:
        state = world.core.state
        self._windows.look(state.live_runs())
        triggers = tuple(self._triggers.look(state, world.clock.at))
        stirred = self._stirs.look(state, world.clock.at)
        if not triggers and not stirred and world.clock.at < self._learn_due:
            return
        self._learn_due = world.clock.at + 60
        self._store.learn(Knowledge(observations=self._windows.fetch()))
        ask = loads(Ask, dumps(Ask(world.clock.at, triggers)))
        reply = loads(Reply, dumps(self._learning.answer(ask)))
        learned = tuple(Learned(f.kind, f.subject, world.clock.at, f.doc) for f in reply.facts)
        known = Knowledge(learned=learned)
        if reply.plan is not None and triggers:
            known = recorded(reply.plan, triggers, learned, world.clock.at)
            self.at[world.clock.at] = json.loads(reply.plan.doc)
            self.plans += [(t.cause, json.loads(reply.plan.doc)) for t in triggers]
        self._store.learn(known)
        if reply.plan is not None and self._acts:
            told = reply.plan
            world.tell(PlanMade(world.clock.at, ask.at, told.reason, told.runs, told.alternatives))

    def last(self, cause: Cause) -> dict[str, Any]:
        return [doc for of, doc in self.plans if of is cause][-1]
