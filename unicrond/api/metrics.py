"""/metrics for Prometheus, in OpenMetrics where it is asked for; every name begins with unicron_.

What is told comes from the view, the loop's heartbeat, the store's reviews and the ledger; nothing
has a label whose values grow with users, jobs or time: of the longest list, the rules of detectors
that have a record, MOST_RULES are told. Heals are counted when they end while this process runs.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Histogram, exposition
from prometheus_client import Counter as Counted
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from db.queries import Queries
from db.store import incident_ended
from detectors.trust import Ledger
from unicrond import __version__
from unicrond.api.callers import Seeing
from unicrond.api.heartbeat import SILENT_AFTER_SECONDS
from unicrond.api.summary import summary
from unicrond.api.usage import LastDay
from unicrond.api.view import View, Viewer
from unicrond.errors import StoreUnavailable
from unicrond.ledger import LOST, MICROSECONDS, Row
from unicrond.model.decision import Mode
from unicrond.model.incident import Incident, Severity

MOST_RULES = 100
MOST_KINDS = 60
SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
ANSWERS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0)
OPEN_METRICS = "application/openmetrics-text"
LOOP = {
    "waiting_events": "Events that wait for the loop",
    "pending_actions": "Actions without an outcome yet",
    "drains_left": "Nodes that may still be drained within this hour",
    "drains_allowed": "Nodes that may be drained within an hour",
    "runs_out_of_restarts": "Live runs whose budget of restarts within the hour is spent",
}
LOOP_TOTALS = {
    "turns": ("loop_turns", "Turns of the loop since its start"),
    "turn_seconds": ("loop_turn_seconds", "Time that turns of the loop took"),
    "slurm_calls": ("slurm_calls", "Commands that acted on Slurm"),
    "slurm_failures": ("slurm_call_failures", "Those that Slurm did not answer"),
    "slurm_seconds": ("slurm_call_seconds", "Time that they took"),
}


class Heals:
    """What ended while we looked, each once."""

    def __init__(self, registry: CollectorRegistry) -> None:
        of = ("severity",)
        self._parts = {
            name: Histogram(
                f"unicron_{name}_seconds", words, of, registry=registry, buckets=SECONDS
            )
            for name, words in (
                ("detection", "From the first sign of a fault until unicrond knew"),
                ("decision", "From then until something was decided"),
                ("transition", "From the decision until the incident was over"),
            )
        }
        self._count = Counted(
            "unicron_incidents", "Incidents that are over", ("kind", "severity", "state"),
            registry=registry,
        )  # fmt: skip
        self._known: set[int] | None = None
        self._kinds: set[str] = set()

    def look(self, view: View) -> None:
        over = {
            entry.value.incident_id: entry.value
            for entry in view.incidents.entries
            if incident_ended(entry.value)
        }
        known = over.keys() if self._known is None else self._known
        for incident in (over[number] for number in sorted(over.keys() - known)):
            self._observe(incident)
        self._known = set(over)

    def _observe(self, incident: Incident) -> None:
        severity = str(incident.severity)
        if incident.severity is not Severity.NONE:
            self._time("detection", severity, incident.first_signal_at, incident.opened_at)
            self._time("decision", severity, incident.opened_at, incident.decided_at)
            self._time("transition", severity, incident.decided_at, incident.closed_at)
        kind = incident.kind
        if kind not in self._kinds and len(self._kinds) >= MOST_KINDS:
            kind = "other"
        self._kinds.add(kind)
        self._count.labels(kind, severity, str(incident.state)).inc()

    def _time(self, part: str, severity: str, began: float, ended: float) -> None:
        if began and ended >= began:
            self._parts[part].labels(severity).observe(ended - began)


class Present:
    """Asked each time that somebody scrapes."""

    def __init__(
        self, queries: Queries, viewer: Viewer, cluster: str, now: Callable[[], float],
        last_day: LastDay,
    ) -> None:  # fmt: skip
        self._queries, self._viewer, self._cluster, self._now = queries, viewer, cluster, now
        self._last_day = last_day

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield _gauge("build_info", "1, with the version", {(__version__,): 1.0}, ("version",))
        try:
            view = self._viewer.current()
            reviews, lease = Ledger(self._queries.reviews()), self._queries.lease()
        except StoreUnavailable:
            yield _gauge("store_up", "Whether the database answers", {(): 0.0})
            return
        yield _gauge("store_up", "Whether the database answers", {(): 1.0})
        if lease is not None:
            yield _gauge("leader_term", "Rises when another unicrond leads", {(): lease.term})
            yield _gauge("lease_age_seconds", "Since it was renewed", {(): lease.age_seconds})
        yield from self._of_loop(view)
        yield from self._of_cluster(view)
        yield from _of_rules(reviews)
        yield from _of_usage(self._last_day.row())
        if (waf := _waf(self._queries)) is not None:
            yield _gauge("planned_waf", "Weighted FLOP/s of the newest plan", {(): waf})

    def _of_loop(self, view: View) -> Iterator[Metric]:
        heart = view.heartbeat
        age = float("inf") if heart is None else max(0.0, self._now() - heart.at)
        alive = age <= SILENT_AFTER_SECONDS
        yield _gauge("loop_up", "Whether the loop works", {(): float(alive)})
        if heart is None:
            return
        yield _gauge("loop_age_seconds", "Since the loop told of itself", {(): age})
        modes = {(str(mode),): float(mode is heart.mode) for mode in Mode}
        yield _gauge("mode", "1 for the mode that holds", modes, ("mode",))
        up = float(alive and not heart.slurm_error and heart.snapshot_at > 0)
        yield _gauge("slurm_up", "Whether Slurm answers", {(): up})
        if heart.snapshot_at:
            snapshot_age = max(0.0, self._now() - heart.snapshot_at)
            yield _gauge("slurm_snapshot_age_seconds", "Of what Slurm said", {(): snapshot_age})
        connected = heart.agents_connected if alive else 0
        yield _gauge("agents_connected", "Agents that are connected", {(): connected})
        for name, words in LOOP.items():
            if name in heart.figures:
                yield _gauge(name, words, {(): heart.figures[name]})
        for key, (name, words) in LOOP_TOTALS.items():
            if key in heart.figures:
                yield CounterMetricFamily(f"unicron_{name}", words, heart.figures[key])

    def _of_cluster(self, view: View) -> Iterator[Metric]:
        told = summary(self._cluster, view)
        yield _gauge("nodes", "Nodes by state", _keyed(told.nodes), ("state",))
        gpus = {"all": told.gpus, "up": told.gpus_up, "held": told.gpus_held}
        gpus["managed"] = told.gpus_managed
        yield _gauge("gpus", "GPUs: all, up, held by jobs, of these managed", _keyed(gpus), ("of",))
        yield _gauge("runs", "Live runs by state", _keyed(told.runs), ("state",))
        severities = {str(severity): 0 for severity in Severity} | told.incidents
        yield _gauge("incidents_open", "Open incidents", _keyed(severities), ("severity",))
        person = {(): float(told.waiting_for_a_person)}
        yield _gauge("incidents_waiting_for_a_person", "Left to people", person)
        oldest = [e.value.opened_at for e in view.incidents.entries if not incident_ended(e.value)]
        age = max(0.0, self._now() - min(oldest)) if oldest else 0.0
        yield _gauge("incident_oldest_seconds", "Since the oldest open one was opened", {(): age})


def _of_rules(reviews: Ledger) -> Iterator[Metric]:
    records = {rule: reviews.whole(rule) for rule in reviews.rules()}
    most = Counter({r: n.confirmed + n.refuted + n.undecided for r, n in records.items()})
    values: dict[tuple[str, ...], float] = {}
    for rule, _ in most.most_common(MOST_RULES):
        for proof in ("confirmed", "refuted", "undecided"):
            values[rule, proof] = getattr(records[rule], proof)
    yield _gauge("rule_record", "What became of its incidents", values, ("rule", "proof"))


def _of_usage(row: Row) -> Iterator[Metric]:
    lost = {(cause,): row.causes.get(cause, 0) / MICROSECONDS for cause in sorted(LOST)}
    yield _gauge("lost_gpu_seconds", "Lost within the last day, by cause", lost, ("cause",))
    held = {(): row.amount / MICROSECONDS}
    yield _gauge("held_gpu_seconds", "Held by jobs within the last day", held)
    if row.goodput is not None:
        words = "Part of what runs held within the last day that trained"
        yield _gauge("goodput_ratio", words, {(): row.goodput})


def _waf(queries: Queries) -> float | None:
    try:
        found = queries.last_plan()
        return None if found is None else float(json.loads(found.doc)["today"]["waf"])
    except (StoreUnavailable, KeyError, TypeError, ValueError):
        return None


def _keyed(counts: dict[str, int]) -> dict[tuple[str, ...], float]:
    return {(name,): float(count) for name, count in counts.items()}


def _gauge(
    name: str, words: str, values: Mapping[Any, float],
    labels: tuple[str, ...] = (),
) -> GaugeMetricFamily:  # fmt: skip
    family = GaugeMetricFamily(f"unicron_{name}", words, labels=labels)
    for key, value in values.items():
        family.add_metric(list(key), value)
    return family


class Answers:
    """How long answers took, by the route and the kind of status."""

    def __init__(self, app: ASGIApp, registry: CollectorRegistry) -> None:
        self._app = app
        self._took = Histogram(
            "unicron_api_answer_seconds", "Until the answer of the API began",
            ("route", "status"), registry=registry, buckets=ANSWERS,
        )  # fmt: skip

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "none").removeprefix("/v1")
                status = f"{message['status'] // 100}xx"
                self._took.labels(route, status).observe(time.perf_counter() - began)
            await send(message)

        await self._app(scope, receive, noted)


def routes(registry: CollectorRegistry, heals: Heals, viewer: Viewer) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    one_at_a_time = threading.Lock()

    @router.get("/metrics")
    def metrics(request: Request, _: Seeing) -> Response:
        modern = OPEN_METRICS in request.headers.get("accept", "")
        form: Any = openmetrics if modern else exposition
        with one_at_a_time:
            with suppress(StoreUnavailable):  # which is told by unicron_store_up
                heals.look(viewer.current())
            words: bytes = form.generate_latest(registry)
        return Response(words, media_type=form.CONTENT_TYPE_LATEST)

    return router
