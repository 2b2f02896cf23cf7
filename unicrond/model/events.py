"""Everything that enters the loop. Times are Unix seconds on unicrond's clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unicrond.model.cluster import Snapshot
from unicrond.model.decision import Alternative, Mode, Outcome
from unicrond.model.incident import Proof, Signal
from unicrond.model.pace import Pace
from unicrond.model.pause import Pause
from unicrond.model.run import Assignment, Phase
from unicrond.model.workload import PLAIN, Workload


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Registration:
    """What an agent says of itself and of its run when it connects."""

    run_id: int
    node: str
    agent: str
    uid: int
    name: str
    weight: float
    min_nodes: int
    max_nodes: int
    ranks_per_node: int
    nodes: tuple[str, ...]
    restarts: int
    phase: Phase
    generation: int
    stopped_generation: int
    assignment: Assignment | None
    lease_seconds: float = 0.0  # that this agent keeps, 0 when it does not say
    workload: Workload = PLAIN
    regrouping: tuple[int, ...] = ()
    prepared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentJoined:
    at: float
    registration: Registration


@dataclass(frozen=True, slots=True)
class AgentBeat:
    at: float
    run_id: int
    node: str
    agent: str
    phase: Phase
    generation: int
    stopped_generation: int
    iteration: int
    counted: int = 0  # iterations complete in this generation, whatever the script calls them
    flops: float = 0.0  # of an iteration on that node, 0 until its ranks have counted them
    peers_heard: dict[str, float] = field(default_factory=dict)  # node -> Unix seconds
    paces: tuple[tuple[int, Pace], ...] = ()  # by rank
    assignment: Assignment | None = None  # sent when it changed
    regrouping: tuple[int, ...] = ()  # ranks of the generation that can go over into the next
    prepared: tuple[str, ...] = ()  # members that wait to be taken into one


@dataclass(frozen=True, slots=True)
class AgentLeft:
    """The connection ended: `finished` when the agent said that its run is over."""

    at: float
    run_id: int
    node: str
    agent: str
    finished: bool
    exit_code: int = 0
    silent: bool = False  # we gave it up; that its process ended is not known


@dataclass(frozen=True, slots=True)
class SignalArrived:
    signal: Signal


@dataclass(frozen=True, slots=True)
class OutcomeArrived:
    """`run_id`, `node`: of the agent that tells it; an agent speaks for its own orders alone."""

    outcome: Outcome
    run_id: int | None = None  # None: unicrond carried it out itself
    node: str = ""


@dataclass(frozen=True, slots=True)
class ModeSet:
    at: float
    mode: Mode
    who: str
    run_id: int | None = None  # None: the whole cluster


@dataclass(frozen=True, slots=True)
class ReviewGiven:
    """A person says whether an incident was one. `official`: an admin, whose word counts for all"""

    at: float
    incident_id: int
    proof: Proof
    who: str
    official: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ResizeAsked:
    """A run is to have so many nodes."""

    at: float
    run_id: int
    nodes: int
    who: str


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run in a plan, in nodes: what it had, in which generation, and what it is to have.
    `placed`: the nodes it would be on, as a hint; empty where the plan names none."""

    run_id: int
    pool: str
    generation: int
    before: int
    nodes: int
    placed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanMade:
    """The planner's division of the cluster as it was `seen_at`. `runs`: all that it weighed."""

    at: float
    seen_at: float
    reason: str
    runs: tuple[PlannedRun, ...]
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class ShareSet:
    """What a run's work is worth, or is guaranteed, was changed. None: as before."""

    at: float
    run_id: int
    who: str
    weight: float | None = None
    floor_nodes: int | None = None


@dataclass(frozen=True, slots=True)
class PauseSet:
    """A kind of action, or a partition, was paused or is not any more."""

    pause: Pause
    on: bool


@dataclass(frozen=True, slots=True)
class NodeAsked:
    """A person wants a node drained, or given back."""

    at: float
    node: str
    drain: bool
    who: str


@dataclass(frozen=True, slots=True)
class PolicySet:
    """The configuration was read anew: numbers of the policy by name, those that changed."""

    at: float
    numbers: Mapping[str, Any]  # as their fields have them: int or float


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing happened but time. `lag_seconds`: by how much the loop itself was late."""

    at: float
    lag_seconds: float = 0.0


Event = (
    SnapshotTaken
    | AgentJoined
    | AgentBeat
    | AgentLeft
    | SignalArrived
    | OutcomeArrived
    | ModeSet
    | ReviewGiven
    | ResizeAsked
    | PlanMade
    | ShareSet
    | PauseSet
    | NodeAsked
    | PolicySet
    | Tick
)
