"""Who leads, where several unicronds share one database. Pure.

    stands by ── the row is free, or was not renewed for as long as it says ──> takes it, and leads
    leads     ── the row is another's ──> ends

Of time only lengths count, each on the stopwatch of one host: no clock is compared with another's.

    the leader begins no act   `lease_seconds` after it sent its newest renewal
    its last act is over       `act_seconds` later
    a standby takes the row    both and SLACK_SECONDS after it first saw that renewal

Whatever is seen was sent before, so acts of two leaders never overlap. What the leader saves is
refused by the database once the row has another term (db/lease.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from unicrond.model.strenum import StrEnum

SLACK_SECONDS = 0.5  # for a command to be started, and stopwatches that differ a little
RENEWALS = 4  # in the time of a lease
NOBODY = ""
NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Row:
    """The lease as the database has it. `wait_seconds`: how long a standby waits without a renewal;
    its leader says so, whose configuration may differ."""

    term: int
    holder: str  # one process, ever; NOBODY: given back
    host: str
    wait_seconds: float
    renewals: int = 0  # of this term
    age_seconds: float = field(default=0.0, compare=False)  # since the newest, for people


class Step(StrEnum):
    WAIT = "wait"
    TAKE = "take"
    HOLD = "hold"
    RENEW = "renew"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one unicrond knows of the lease. Times are of its own stopwatch, in seconds."""

    me: str
    host: str
    lease_seconds: float
    act_seconds: float  # no act takes longer
    row: Row | None = None  # None: there is none, or not any more
    seen_at: float = NEVER  # when it was first seen as it is
    looked: bool = False
    term: int = 0  # that it leads in; 0: it stands by
    held_until: float = NEVER

    @property
    def wait_seconds(self) -> float:
        return self.lease_seconds + self.act_seconds + SLACK_SECONDS

    def may_act(self, now: float) -> bool:
        return self.term > 0 and now < self.held_until

    def wanted(self) -> Row:
        """The row once it was taken."""
        before = self.row.term if self.row else 0
        return Row(before + 1, self.me, self.host, self.wait_seconds)


def step(known: Candidate, now: float) -> Step:
    """What to do now. After WAIT the row is looked at again, after HOLD only time passes."""
    row = known.row
    if known.term:
        if row is None or (row.term, row.holder) != (known.term, known.me):
            return Step.STOP
        sent_at = known.held_until - known.lease_seconds
        return Step.RENEW if now >= sent_at + known.lease_seconds / RENEWALS else Step.HOLD
    if not known.looked:
        return Step.WAIT
    # its own: it was taken, and the answer got lost
    if row is None or row.holder in (NOBODY, known.me) or now >= known.seen_at + row.wait_seconds:
        return Step.TAKE
    return Step.WAIT


def looked(known: Candidate, row: Row | None, now: float) -> Candidate:
    """A standby read the row; `now` is after the reading."""
    seen_at = known.seen_at if known.looked and row == known.row else now
    return replace(known, row=row, seen_at=seen_at, looked=True)


def took(known: Candidate, row: Row, sent_at: float) -> Candidate:
    """The database took it; `sent_at` is before it was asked."""
    return replace(
        known, row=row, term=row.term, held_until=sent_at + known.lease_seconds, looked=True
    )


def renewed(known: Candidate, done: bool, sent_at: float) -> Candidate:
    """The database answered a renewal. Not done: the row is another's."""
    if not done or known.row is None:
        return replace(known, row=None, held_until=NEVER)
    until = max(known.held_until, sent_at + known.lease_seconds)
    return replace(known, held_until=until)
