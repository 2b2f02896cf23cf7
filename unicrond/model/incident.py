"""Signals are what a sensor saw; incidents are what we make of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from unicrond.model.strenum import StrEnum


class SignalKind(StrEnum):
    RANK_EXITED = "rank_exited"  # data: exit_code, signal, stderr (last lines)
    EXCEPTION = "exception"  # text: its traceback; the rank may hang in its tear-down
    SLOW = "slow"  # an iteration over 3 x the average; data: as detectors.hang.Evidence
    LOSS = "loss"  # data: not_a_number, iteration, loss, usual (detectors.loss)
    HARDWARE = "hardware"  # data: source, kind, severity, where, count (detectors.readings)
    PRINTED = "printed"  # of failure, by a living rank; data: as HARDWARE, and blame
    LEASE_EXPIRED = "lease_expired"  # an agent stopped its ranks because it heard nobody
    START_FAILED = "start_failed"  # a generation could not be started on a node
    RESTORED = "restored"  # text: from where ranks go on, and which copies were refused


class Severity(StrEnum):
    SEV1 = "SEV1"  # the node leaves
    SEV2 = "SEV2"  # the processes restart
    SEV3 = "SEV3"  # retry in place
    NONE = "NONE"


class Scope(StrEnum):
    RANK = "rank"
    NODE = "node"
    NODES = "nodes"
    RUN = "run"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Signal:
    """What one sensor saw, `at` Unix seconds on unicrond's clock. It judges nothing."""

    at: float
    kind: SignalKind
    run_id: int | None = None
    node: str = ""
    rank: int | None = None
    member: str = ""
    generation: int = 0
    text: str = ""
    data: dict[str, object] = field(default_factory=dict)


class IncidentState(StrEnum):
    OPEN = "open"
    HEALING = "healing"
    RESOLVED = "resolved"
    PERSON = "person"  # over budget, or more than we may decide
    CLOSED = "closed"  # the run ended first


@dataclass(frozen=True, slots=True)
class Incident:
    """One fault made of many signals, with one root."""

    incident_id: int
    opened_at: float
    kind: str
    severity: Severity
    scope: Scope
    run_id: int | None
    generation: int
    root_node: str
    root_rank: int | None
    state: IncidentState = IncidentState.OPEN
    summary: str = ""
    count: int = 1  # signals merged into it
    cause_text: str = ""  # the evidence, as it was printed
    first_signal_at: float = 0.0  # when the fault was noticed where it happened
    decided_at: float = 0.0
    closed_at: float = 0.0
    rule: str = ""  # that opened it (detectors/trust.py)

    @property
    def only_told(self) -> bool:
        """A run that is slow, say: a person hears of it, and nothing else follows."""
        return self.severity is Severity.NONE and self.scope in (Scope.RANK, Scope.RUN)


class Proof(StrEnum):
    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Review:
    """Whether the rule that opened an incident was right. A person's word outweighs what came of
    it, and the last person's the one before."""

    incident_id: int
    rule: str
    proof: Proof
    at: float
    owner: str = ""  # the user on whose word it rests, "" where it is an admin's or the cluster's
    by: str = ""  # the person who said so, "" where the outcome shows it
    reason: str = ""
    run_id: int | None = None
