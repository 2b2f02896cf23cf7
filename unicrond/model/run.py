"""A run: one training that we look after, and its members, generation by generation."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class RunState(StrEnum):
    """
    starting ──> running <──> healing ──> requeued ──> starting
                    │            │
                    └────────────┴──> completed | failed | cancelled
    """

    STARTING = "starting"  # agents register; the first generation has not been reported
    RUNNING = "running"
    HEALING = "healing"  # an incident is being worked on
    REQUEUED = "requeued"  # waits in Slurm's queue
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in (RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED)


@dataclass(frozen=True, slots=True)
class Slot:
    """One rank of a generation: which member holds it, and where.

    A member is one incarnation of a rank's process; its id never repeats. A new generation keeps a
    member by naming the same id again.
    """

    rank: int
    member: str
    node: str
    local_rank: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """Membership of one generation. `order` tells two proposals for one generation apart."""

    generation: int
    order: str
    slots: tuple[Slot, ...]

    @property
    def world_size(self) -> int:
        return len(self.slots)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes in rank order, each once."""
        return tuple(dict.fromkeys(slot.node for slot in self.slots))


class Phase(StrEnum):
    """What the ranks of one agent are doing."""

    IDLE = "idle"  # no rank was ever started, or all were stopped on order
    STARTING = "starting"
    RUNNING = "running"
    BROKEN = "broken"  # a rank failed, or the lease ran out; the ranks of this agent are gone
    STOPPING = "stopping"
    DONE = "done"  # every rank of this node ended with 0


@dataclass(frozen=True, slots=True)
class AgentView:
    """What unicrond knows of one agent. Ages and times are on unicrond's clock, Unix seconds."""

    node: str
    agent: str  # id of this agent process; never repeats
    connected: bool
    last_heard: float
    phase: Phase = Phase.IDLE
    generation: int = 0
    order: str = ""  # of the assignment it carries out
    iteration: int = -1  # highest train step reported by its ranks, -1 when none reports
    peers_heard: dict[str, float] = field(default_factory=dict)  # node -> Unix seconds
    stopped_generation: int = -1  # ranks up to this generation are proved gone on this node


@dataclass(frozen=True, slots=True)
class Run:
    """One training. `run_id` is the job id of its base allocation."""

    run_id: int
    name: str
    user: str
    uid: int
    weight: float
    min_nodes: int
    max_nodes: int
    ranks_per_node: int
    nodes: tuple[str, ...]  # of the allocation, in Slurm's order
    batch_host: str
    restarts: int  # Slurm's count of requeues at registration
    state: RunState = RunState.STARTING
    generation: int = 0
    assignment: Assignment | None = None
    agents: dict[str, AgentView] = field(default_factory=dict)  # by node
    shunned: tuple[str, ...] = ()  # nodes this run moved off
    generation_since: float = 0.0  # Unix seconds
    iteration: int = -1
    restarts_without_progress: int = 0
    last_root: str = ""  # "node/rank" of the last failure, to tell a repeat from a new one
    end_reason: str = ""
    healing: Healing | None = None


class HealStep(StrEnum):
    """The ordered steps of a heal; each has a post-condition and a deadline (transition/steps.py)."""

    WAIT_AGENTS = "wait-agents"  # a dead agent is started again
    STOP = "stop"  # ranks of the old generation proved gone, or their lease has run out
    CONFIRM = "confirm"  # a lost node: Slurm or a probe says so too
    START = "start"  # the new generation's ranks run
    REQUEUE = "requeue"
    END = "end"


@dataclass(frozen=True, slots=True)
class Healing:
    """An incident at work. Everything needed to go on after a crash of unicrond."""

    incident_id: int
    step: HealStep
    since: float  # Unix seconds, when this step began
    deadline: float
    generation: int  # the generation that is to come
    lost: tuple[str, ...] = ()  # nodes left out
    ordinal: int = 0  # of the next action
