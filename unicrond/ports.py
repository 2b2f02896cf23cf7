"""The ports: what the core needs of the world, in our nouns.

Each port has one contract suite (tests/contract), run over its shipped fake and every real one.
Clock     system | simulated
Slurm     command line | simulated (unicrond/slurm/simulated.py)
Agents    link server | simulated
Store     SQLAlchemy | memory (db/memory.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from unicrond.model.cluster import Snapshot
from unicrond.model.decision import Action, Decision, Mode, Outcome
from unicrond.model.incident import Incident, Review
from unicrond.model.pause import Pause
from unicrond.model.run import Run


class Clock(Protocol):
    def now(self) -> float:
        """Unix seconds."""


class Slurm(Protocol):
    """Acts raise Refused (Slurm said no) or SlurmUnavailable (no answer); all are idempotent."""

    def snapshot(self) -> Snapshot:
        """One look at everything. Never raises: what could not be read is None."""

    def drain(self, node: str, reason: str) -> None:
        """Drains, unless the node already carries somebody's reason that is not ours: Refused."""

    def resume(self, node: str, reason: str) -> None:
        """Undoes our drain of this reason; Refused where the reason is another by now, or the node
        does not respond."""

    def shrink(self, job_id: int, keep: Sequence[str]) -> None:
        """Gives back all nodes of the job but `keep`; refused off the batch host."""

    def cancel(self, job_id: int, uid: int) -> None:
        """Ends a job of this user; one that has ended is done already."""

    def requeue(self, job_id: int, restarts: int) -> None:
        """Requeues, unless the job's restart count is no longer `restarts`: done already."""

    def expedite(self, job_id: int, exclude: Sequence[str], nodes: int = 0) -> None:
        """Starts a requeued job within seconds, off excluded nodes, on `nodes` (0: as many as it
        asks for); Refused until it is pending, and while somebody holds it. What we excluded
        before and do not now is no longer excluded; what its user excluded stays so."""

    def reserve(self, job_id: int, user: str, nodes: Sequence[str]) -> None:
        """Keeps nodes that a job is about to free for this user's jobs, for two minutes at most: it
        need not ask for the reservation, and may run on when that ends."""

    def tell(self, job_id: int, verdict: str) -> None:
        """Writes our last verdict on the run of this job where admins and its user see it; Refused
        where somebody else's words are."""


class Agents(Protocol):
    def order(self, action: Action) -> bool:
        """Sends an order; False when that agent is not connected now."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One line of the story, `at` Unix seconds. `kind`: signal, decision, plan, action, outcome,
    note."""

    at: float
    kind: str
    text: str
    run_id: int | None = None
    incident_id: int | None = None
    node: str = ""
    generation: int = 0
    data: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Changes:
    """What one cycle of the loop changed. Saved as one transaction, before any action is taken."""

    runs: tuple[Run, ...] = ()
    incidents: tuple[Incident, ...] = ()
    decisions: tuple[Decision, ...] = ()
    intents: tuple[Action, ...] = ()  # to be carried out after the save
    outcomes: tuple[Outcome, ...] = ()
    journal: tuple[JournalEntry, ...] = ()
    again: tuple[Action, ...] = ()  # intents saved earlier, to be carried out once more
    snapshot: Snapshot | None = None
    mode: Mode | None = None
    reviews: tuple[Review, ...] = ()
    at: float = 0.0  # Unix seconds, of the cycle; 0: not told
    pauses: tuple[Pause, ...] | None = None  # all that hold now; None: as before

    def __bool__(self) -> bool:
        return bool(
            self.runs
            or self.incidents
            or self.decisions
            or self.intents
            or self.outcomes
            or self.journal
            or self.again
            or self.snapshot
            or self.mode
            or self.pauses is not None
            or self.reviews
        )


@dataclass(frozen=True, slots=True)
class Saved:
    """Everything needed to go on after a crash: live runs, open incidents, unfinished intents."""

    runs: tuple[Run, ...] = ()
    incidents: tuple[Incident, ...] = ()
    unfinished: tuple[Action, ...] = ()
    next_incident_id: int = 1
    next_ordinal: int = 0  # one above the highest ordinal of any action
    mode: Mode | None = None
    drains: tuple[tuple[float, str], ...] = ()  # (Unix seconds, node) of our drains, last hour
    reviews: tuple[Review, ...] = ()  # of the newest incidents, oldest first
    pauses: tuple[Pause, ...] = ()


class Store(Protocol):
    def load(self) -> Saved:
        """The state at the last save."""

    def save(self, changes: Changes) -> None:
        """All or nothing; raises StoreUnavailable and then nothing was saved."""
