"""Where GPU time went: the ledger over the API, and the last day's for /metrics."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Literal

from fastapi import APIRouter, Query

from db.held import incidents_of, phases_of, spells_within
from db.queries import Queries
from unicrond.api.callers import Seeing, Sight
from unicrond.api.places import Moment
from unicrond.api.reports import LedgerOut, LedgerRowOut
from unicrond.errors import BadInput, StoreUnavailable
from unicrond.ledger import MICROSECONDS, Piece, Row, pieces, summed, together

LONGEST_SECONDS = 400 * 86_400.0
DAY_SECONDS = 86_400.0
EVERY_SECONDS = 60.0
By = Literal["run", "job", "node", "account", "user", "cause", "kind"]


def found(queries: Queries, began: float, ended: float, sight: Sight | None) -> Iterator[Piece]:
    """`sight` None: everything. Raises StoreUnavailable, BadInput. Pieces are made one by one:
    of a year they are more than fit into memory."""
    held = spells_within(queries, began, ended)
    if sight is not None and not sight.usage:
        held = tuple(one for one in held if sight.caller.owns(one.user, None, one.account))
    jobs = sorted({one.job_id for one in held})
    phases = phases_of(queries, jobs, ended)
    runs = {phase.base or phase.run_id for told in phases.values() for phase in told}
    incidents = incidents_of(queries, sorted(runs), began, ended)
    return pieces(held, phases, incidents, began, ended)


def routes(queries: Queries, now: Callable[[], float]) -> APIRouter:
    router = APIRouter(tags=["usage"])

    @router.get("/ledger")
    def ledger(
        sight: Seeing,
        began: Annotated[Moment, Query(alias="from")] = 0.0,
        ended: Annotated[Moment, Query(alias="to")] = 0.0,
        by: By = "cause",
        limit: Annotated[int, Query(ge=1, le=20_000)] = 1000,
    ) -> LedgerOut:
        """GPU-seconds that Slurm gave out, by cause: each counted once, none left out. `from` is a
        day before `to`, and `to` is now, where they are not told."""
        until = min(ended, now()) if ended else now()
        since = began or until - DAY_SECONDS
        if not since < until or until - since > LONGEST_SECONDS:
            raise BadInput("from, to: from is before to and now, and at most 400 days before")
        rows = summed(found(queries, since, until, sight), by)
        return LedgerOut(
            began=since,
            ended=until,
            by=by,
            total=_row(together(rows)),
            rows=[_row(row) for row in rows[:limit]],
            more=len(rows) > limit,
        )

    return router


def _row(row: Row) -> LedgerRowOut:
    return LedgerRowOut(
        key=row.key,
        gpu_seconds=row.amount / MICROSECONDS,
        lost_gpu_seconds=row.lost / MICROSECONDS,
        goodput=row.goodput,
        causes={cause: amount / MICROSECONDS for cause, amount in sorted(row.causes.items())},
    )


class LastDay:
    """The last day's ledger, added up in the background at most once a minute."""

    def __init__(self, queries: Queries, now: Callable[[], float] = time.time) -> None:
        self._queries, self._now = queries, now
        self._row = Row("all", 0, {})
        self._due = float("-inf")
        self._lock = threading.Lock()

    def row(self) -> Row:
        with self._lock:
            if time.monotonic() >= self._due:
                self._due = time.monotonic() + EVERY_SECONDS
                try:
                    until = self._now()
                    every = found(self._queries, until - DAY_SECONDS, until, None)
                    self._row = together(summed(every, "cause"))
                except (StoreUnavailable, BadInput):
                    return self._row  # as it was
            return self._row
