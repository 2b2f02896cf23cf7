"""What the worker makes of the database: fits, rates, times, and where asked a proposal.

It only reads. What it found goes back as facts, each told once and again when it changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from db.knowledge import AWAY, CLUSTER, HEALS, RELIABILITY, THROUGHPUT, UPTIME, Observation
from db.queries import Queries
from planner import iteration, reliability, repairs, shown, transitions
from planner.cluster import Cluster, Known, pool_of
from planner.facts import problem
from planner.fairness import Guarantee
from planner.iteration import Fit, Measured
from planner.proposal import Proposal, propose
from planner.question import Question, parse
from planner.ready import Ready, foreseen, make_ready
from planner.reliability import NodeFailure, Watched
from planner.transitions import KINDS, Changed
from unicrond.errors import BadInput
from unicrond.model.cluster import Node, NodeState
from unicrond.model.decision import Decision
from unicrond.model.incident import Incident, Proof, Scope, Severity
from unicrond.model.run import Run
from unicrond.planning.followed import MOST_KEPT, follow
from unicrond.planning.triggers import Cause
from unicrond.planning.words import Ask, Fact, Line, Plan, Reply

HOUR_SECONDS, DAY_SECONDS = 3600.0, 86400.0
LEAST_AWAY_SECONDS = 120.0  # what is shorter was no repair
NO_RUNS = tuple(c for c in Cause if c not in (Cause.RUN_STARTED, Cause.RUN_ENDED))
MOST_ABSENCES = 1_000  # of the newest
UNWATCHED_SECONDS = 300.0  # a longer pause between two looks is not counted as up
UPTIME_EVERY_SECONDS = 600.0
CHANGES_OVER_DAYS = 7.0
FOLLOWED_SECONDS = 86_400.0  # a heal is followed for so long
Heals = Sequence[tuple[Incident, Decision]]
MOST_RUNS, MOST_NODES, MOST_ALLOCATIONS, MOST_OPEN = 1_000, 50_000, 50_000, 1_000


class Uptime:
    """How long each node was up under our eyes: [since when we look, days up]."""

    def __init__(self, saved: object) -> None:
        self.of: dict[str, list[float]] = {}
        self._at, self.told_at = 0.0, 0.0
        if isinstance(saved, dict):
            self.of = {str(name): [float(x) for x in pair] for name, pair in saved.items()}

    def look(self, at: float, nodes: Mapping[str, Node]) -> None:
        passed, self._at = at - self._at, at
        for name, node in nodes.items():
            pair = self.of.setdefault(name, [at, 0.0])
            if node.state is NodeState.UP and 0 < passed <= UNWATCHED_SECONDS:
                pair[1] += passed / DAY_SECONDS
        self.of = {name: pair for name, pair in self.of.items() if name in nodes}

    @property
    def days(self) -> float:
        """Since when we look, at least one."""
        since = min((pair[0] for pair in self.of.values()), default=self._at)
        return max(1.0, (self._at - since) / DAY_SECONDS)


class Absences:
    """Nodes out of service, as they are seen to go and to come back."""

    def __init__(self, saved: object) -> None:
        self._away: dict[str, tuple[str, float]] = {}  # pool, since when under our eyes
        self._ended: list[tuple[str, float]] = []  # pool, hours
        self._at = 0.0
        if isinstance(saved, dict):
            self._away = {str(n): (str(p), float(t)) for n, (p, t) in saved["away"].items()}
            self._ended = [(str(pool), float(hours)) for pool, hours in saved["ended"]]

    def look(self, at: float, nodes: Mapping[str, Node]) -> None:
        watched, self._at = at - self._at <= UNWATCHED_SECONDS, at
        for name, node in nodes.items():
            if node.state in (NodeState.DOWN, NodeState.DRAINED):
                self._away.setdefault(name, (pool_of(node), at))
            elif node.state is NodeState.UP and name in self._away:
                pool, since = self._away.pop(name)
                if watched and at - since >= LEAST_AWAY_SECONDS:
                    self._ended.append((pool, (at - since) / HOUR_SECONDS))
        self._away = {name: told for name, told in self._away.items() if name in nodes}
        self._ended = self._ended[-MOST_ABSENCES:]

    def seen(self) -> list[repairs.Away]:
        still = [(pool, (self._at - since) / HOUR_SECONDS) for pool, since in self._away.values()]
        return [repairs.Away(*told, True) for told in self._ended] + [
            repairs.Away(*told, False) for told in still
        ]

    def saved(self) -> object:
        return {"away": self._away, "ended": self._ended}


@dataclass(frozen=True, slots=True)
class _Fitted:
    """A fit and what it was made of."""

    of: tuple[object, ...]
    fit: Fit | None


class Learning:
    def __init__(self, queries: Queries, accounts: Mapping[str, Guarantee] | None = None) -> None:
        self._queries = queries
        self._accounts = accounts or {}
        self._uptime: Uptime | None = None
        self._absences = Absences(None)
        self._fits: dict[int, _Fitted] = {}
        self._told: dict[tuple[str, str], str] = {}
        self._followed: list[dict[str, Any]] | None = None
        self._asked: tuple[Question | None, float] = (None, 0.0)
        self._ready: Ready | None = None

    def answer(self, ask: Ask) -> Reply:
        """Raises StoreUnavailable."""
        queries = self._queries
        if self._uptime is None:
            self._uptime = Uptime(queries.learned(UPTIME, CLUSTER))
            self._absences = Absences(queries.learned(AWAY, CLUSTER))
        seen = _cluster(queries, ask)
        self._uptime.look(ask.at, seen.nodes)
        self._absences.look(ask.at, seen.nodes)
        heals = queries.heals()
        changes = _changes(heals)
        of_all = transitions.learn(changes)
        rates = reliability.learn(self._watched(seen.nodes), _failures(queries), ask.at)
        fits = self._fit(seen, queries.observations())
        lines = self._follow(heals, seen, ask.at)
        back = repairs.learn(self._absences.seen(), [pool.name for pool in rates.pools])
        told = shown.reliability(rates, of_all, back, ask.at)
        facts = self._new(self._facts(ask.at, seen, fits, told))
        durations = {run_id: transitions.of_run(run_id, changes, of_all) for run_id in seen.planned}
        others = queries.plans_since(ask.at - CHANGES_OVER_DAYS * DAY_SECONDS, NO_RUNS)
        per_day = others / min(CHANGES_OVER_DAYS, self._uptime.days)
        found = propose(seen, Known(fits, durations, rates, self._accounts, back, per_day))
        if found is None or not (ask.triggers or found.moves):
            return Reply(facts, lines)
        if ask.triggers:
            self._asked = _question(found), ask.at
            found.doc["foreseen"] = self._foreseen(found.doc["unlimited"])
        doc = json.dumps(found.doc, allow_nan=False)
        plan = Plan(found.choice, found.reason, found.alternatives, doc, found.runs)
        return Reply(facts, lines, plan)

    def _foreseen(self, unlimited: Any) -> str:
        question, at = self._asked
        if question is None:
            return ""
        sizes = {run["id"]: run["size"] for run in unlimited.get("runs", ())}
        return foreseen(self._ready, question, sizes, at)

    def prepare(self) -> None:
        """For the next event, after the answer to this one went out; what was ready is stale."""
        question, at = self._asked
        if self._ready is not None and self._ready.at == at:
            return
        self._ready = None
        if question is not None:
            with suppress(BadInput):  # gains that cannot be rounded exactly: then none are ready
                self._ready = make_ready(question, at)

    def _follow(self, heals: Heals, seen: Cluster, now: float) -> tuple[Line, ...]:
        """Heals whose plan is compared now with what came of it, each once."""
        if self._followed is None:
            self._followed = self._queries.learned(HEALS, CLUSTER) or []
        known, lines = {told["incident_id"] for told in self._followed}, list[Line]()
        live = {run.run_id: run for run in seen.runs}
        for incident, decision in heals:
            run = live.get(decision.run_id or -1)
            new = incident.incident_id not in known and incident.first_signal_at > 0
            if run is None or not new or incident.closed_at < now - FOLLOWED_SECONDS:
                continue
            if (plan := self._queries.plan_of(incident.incident_id)) is None:
                continue
            observed = self._queries.observations(run.run_id)
            if told := follow(incident, decision, plan, run, observed, now):
                self._followed = [*self._followed, asdict(told)][-MOST_KEPT:]
                where = (incident.root_node, incident.generation)
                lines.append(Line(told.text, run.run_id, incident.incident_id, *where))
        return tuple(lines)

    def _watched(self, nodes: Mapping[str, Node]) -> list[Watched]:
        assert self._uptime is not None
        up = self._uptime.of
        return [
            Watched(n, pool_of(node), up[n][1], up[n][0], node.switch) for n, node in nodes.items()
        ]

    def _fit(self, seen: Cluster, told: tuple[Observation, ...]) -> dict[int, Fit | None]:
        """Anew only where something was measured since."""
        by_run: dict[int, list[Observation]] = {}
        for observation in told:
            by_run.setdefault(observation.run_id, []).append(observation)
        fitted = dict[int, _Fitted]()
        for run in seen.runs:
            mine = tuple(
                Measured(o.workers, o.seconds, o.iterations) for o in by_run.get(run.run_id, ())
            )
            made_of = (run.workload, mine, _gpu_type(run, seen.nodes))
            known = self._fits.get(run.run_id)
            if known is None or known.of != made_of:
                known = _Fitted(made_of, iteration.fit(run.workload, mine, made_of[2]))
            fitted[run.run_id] = known
        self._fits = fitted
        return {run_id: known.fit for run_id, known in fitted.items()}

    def _facts(
        self, at: float, seen: Cluster, fits: Mapping[int, Fit | None], rates: shown.Shown
    ) -> Iterator[Fact]:
        assert self._uptime is not None
        if at >= self._uptime.told_at + UPTIME_EVERY_SECONDS:
            self._uptime.told_at = at
            yield Fact(UPTIME, CLUSTER, json.dumps(self._uptime.of))
            yield Fact(AWAY, CLUSTER, json.dumps(self._absences.saved()))
            yield Fact(RELIABILITY, CLUSTER, json.dumps(rates, allow_nan=False))
        if self._followed:
            yield Fact(HEALS, CLUSTER, json.dumps(self._followed, allow_nan=False))
        for run in seen.runs:
            fit = fits[run.run_id]
            if fit is not None:
                largest = 2 * run.ranks_per_node * max(run.max_nodes, len(run.nodes))
                doc = json.dumps(shown.model(fit, run.ranks_per_node, largest), allow_nan=False)
                yield Fact(THROUGHPUT, str(run.run_id), doc)

    def _new(self, facts: Iterator[Fact]) -> tuple[Fact, ...]:
        new = list[Fact]()
        for fact in facts:
            if self._told.get((fact.kind, fact.subject)) != fact.doc:
                self._told[fact.kind, fact.subject] = fact.doc
                new.append(fact)
        return tuple(new)


def _question(found: Proposal) -> Question | None:
    """The one without limits; None where it cannot be asked."""
    questions = found.doc["questions"]
    assert isinstance(questions, dict)
    try:
        question = parse(json.dumps(questions["unlimited"]))
        problem(question)
    except BadInput:
        return None
    return question


def _cluster(queries: Queries, ask: Ask) -> Cluster:
    return Cluster(
        at=ask.at,
        runs=queries.runs(live=True, limit=MOST_RUNS).items,
        nodes={seen.node.name: seen.node for seen in queries.nodes(limit=MOST_NODES).items},
        allocations=[s.allocation for s in queries.allocations(limit=MOST_ALLOCATIONS).items],
        incidents=queries.incidents(open_=True, limit=MOST_OPEN).items,
        avoided={t.run_id: frozenset(t.avoided) for t in ask.triggers if t.run_id is not None},
    )


def _gpu_type(run: Run, nodes: Mapping[str, Node]) -> str:
    return next((nodes[name].gpu_type for name in run.nodes if name in nodes), "")


def _failures(queries: Queries) -> list[NodeFailure]:
    """Nodes that were lost or sick, but for what turned out to be a false alarm."""
    wrong = {r.incident_id for r in queries.reviews() if r.proof is Proof.REFUTED}
    return [
        NodeFailure(incident.opened_at, incident.root_node, incident.run_id)
        for incident in queries.faults()
        if _takes_node(incident) and incident.incident_id not in wrong
    ]


def _takes_node(incident: Incident) -> bool:
    return incident.severity is Severity.SEV1 and incident.scope in (Scope.NODE, Scope.NODES)


def _changes(heals: Heals) -> list[Changed]:
    found = (_changed(incident, decision) for incident, decision in heals)
    return [change for change in found if change is not None]


def _changed(incident: Incident, decision: Decision) -> Changed | None:
    seconds = incident.closed_at - incident.first_signal_at
    if decision.run_id is None or decision.choice not in KINDS or seconds <= 0:
        return None
    return Changed(decision.run_id, decision.choice, seconds)
