"""What lists are answered from: an immutable picture of the cluster, its items JSON already.

A thread beside the server asks the store for what changed and puts the next picture in place of the
last; whoever answers holds one picture from beginning to end. Runs and incidents that are over and
old are not in it: for those the store is asked (lists.py).
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from db.codec import CodecError, decode
from db.newer import NEWEST, Newer, Stored
from db.queries import Queries, SeenAllocation, SeenNode
from unicrond.api.heartbeat import HEARTBEAT_KEY, Heartbeat
from unicrond.api.models import AllocationOut, IncidentOut, NodeOut, RunOut
from unicrond.errors import StoreUnavailable
from unicrond.model.incident import Incident
from unicrond.model.run import Run

log = logging.getLogger(__name__)

REFRESH_SECONDS = 0.5
WHOLE_SECONDS = 60.0  # between two looks at everything, for what was deleted or forgotten
STALE_SECONDS = 10.0  # a picture older than this is not shown for the present
ITEMS_AT_ONCE = 5  # then a breath, in which requests are answered
BREATH_SECONDS = 0.0005

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    mark: Any  # of the row that it was made from
    value: T
    json: bytes


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """In the order in which it is shown; `places` rise and tell where a key stands."""

    places: tuple[Any, ...] = ()
    entries: tuple[Entry[T], ...] = ()
    gapless: int = 0  # so many from the front; behind them some are in the store alone
    complete: bool = True  # nothing is in the store alone

    def at(self, place: Any) -> Entry[T] | None:
        index = bisect_left(self.places, place)
        found = index < len(self.places) and self.places[index] == place
        return self.entries[index] if found else None


@dataclass(frozen=True, slots=True)
class View:
    number: int = 0  # rises whenever something changed
    at: float = 0.0  # of the look, on a clock that nobody sets
    heartbeat: Heartbeat | None = None
    nodes: Listing[SeenNode] = field(default_factory=Listing)
    allocations: Listing[SeenAllocation] = field(default_factory=Listing)
    runs: Listing[Run] = field(default_factory=Listing)
    incidents: Listing[Incident] = field(default_factory=Listing)

    def run(self, run_id: int) -> Run | None:
        found = self.runs.at(-run_id)
        return found.value if found else None


class _Part(Generic[T]):
    """One list while it is kept: what changed is taken in, what did not is left as it is."""

    def __init__(self, show: Callable[[T], bytes], newest_first: bool = True) -> None:
        self._show, self._newest_first = show, newest_first
        self._entries: dict[Any, Entry[T]] = {}
        self.since = float("-inf")  # mark of the newest row that was seen
        self.listing: Listing[T] = Listing()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def take(self, rows: Sequence[Stored[T]], most: int | None, complete: bool) -> bool:
        """Whether anything changed. `complete`: what is not among the rows is no more."""
        changed = False
        if complete:
            gone = self._entries.keys() - {row.key for row in rows}
            changed = bool(gone)
            for key in gone:
                del self._entries[key]
        for number, row in enumerate(rows):
            self.since = max(self.since, row.since)
            changed |= self._take(row)
            if number % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
                time.sleep(BREATH_SECONDS)
        if changed or complete:
            self._list(most)
        return changed

    def _take(self, row: Stored[T]) -> bool:
        known = self._entries.get(row.key)
        if row.gone:
            return self._entries.pop(row.key, None) is not None
        if known is not None and known.mark == row.mark:
            return False
        try:
            value = row.read()
        except StoreUnavailable as error:  # one damaged row hides nothing but itself
            log.error("left out of the lists: %s", error)
            return False
        self._entries[row.key] = Entry(row.mark, value, self._show(value))
        return True

    def _list(self, most: int | None) -> None:
        keys = sorted(self._entries, reverse=self._newest_first)
        places = tuple(-key for key in keys) if self._newest_first else tuple(keys)
        complete = most is None or len(keys) < most
        entries = tuple(self._entries[key] for key in keys)
        self.listing = Listing(places, entries, most or len(keys), complete)


def _node(seen: SeenNode) -> bytes:
    return NodeOut.of(seen).model_dump_json().encode()


def _allocation(seen: SeenAllocation) -> bytes:
    return AllocationOut.of(seen).model_dump_json().encode()


def _run(run: Run) -> bytes:
    return RunOut.of(run).model_dump_json().encode()


def _incident(incident: Incident) -> bytes:
    return IncidentOut.of(incident).model_dump_json().encode()


def heartbeat_of(queries: Queries) -> Heartbeat | None:
    """None where there is none that can be read. Raises StoreUnavailable."""
    data = queries.meta(HEARTBEAT_KEY)
    try:
        return None if data is None else decode(Heartbeat, data)
    except CodecError:
        return None


class Viewer:
    """Keeps the present view. `current` is for any thread, everything else for one at a time."""

    def __init__(self, queries: Queries, clock: Callable[[], float] = time.monotonic) -> None:
        self._newer, self._queries, self._clock = Newer(queries), queries, clock
        self._view = View()
        self._fault: StoreUnavailable | None = None
        self._whole_at = float("-inf")
        self._nodes = _Part(_node, newest_first=False)
        self._allocations = _Part(_allocation)
        self._runs, self._incidents = _Part(_run), _Part(_incident)
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self.after_look: Callable[[View], None] = lambda _: None

    def start(self) -> None:
        """From now on a thread keeps the view new; without it `current` looks by itself."""
        self.look()
        gc.freeze()  # else each full collection goes through all of it, and everybody waits
        self._thread = threading.Thread(target=self._keep, name="view", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        if self._thread is not None:
            self._thread.join(2.0)

    def current(self) -> View:
        """Raises StoreUnavailable when what is known is too old to be called the present."""
        if self._thread is None:
            self.look()
        view, fault = self._view, self._fault
        if fault is not None and (self._thread is None or view.at < self._clock() - STALE_SECONDS):
            raise fault
        return view

    def look(self) -> None:
        began = self._clock()
        try:
            changed = self._look(began)
            heartbeat = heartbeat_of(self._queries)
        except StoreUnavailable as error:
            self._fault = error
            return
        self._fault = None
        self._view = View(
            self._view.number + changed,
            began,
            heartbeat,
            self._nodes.listing,
            self._allocations.listing,
            self._runs.listing,
            self._incidents.listing,
        )
        self.after_look(self._view)

    def _keep(self) -> None:
        while not self._ending.wait(REFRESH_SECONDS):
            self.look()

    def _look(self, began: float) -> bool:
        ask, complete = self._newer, began >= self._whole_at + WHOLE_SECONDS
        complete |= ask.count_nodes() != len(self._nodes)
        if complete:
            self._queries.check()
            self._whole_at = began
            for part in (self._nodes, self._allocations, self._runs, self._incidents):
                part.since = float("-inf")
        new_runs = ask.runs_since(self._runs.since)
        if any(row.key not in self._runs for row in new_runs):
            self._allocations.since = float("-inf")  # some are managed now
        every = complete or self._allocations.since == float("-inf")
        return any(
            (
                self._nodes.take(ask.nodes_since(self._nodes.since), None, complete),
                self._runs.take(new_runs, NEWEST, complete),
                self._allocations.take(ask.allocations_since(self._allocations.since), None, every),
                self._incidents.take(ask.incidents_since(self._incidents.since), NEWEST, complete),
            )
        )
