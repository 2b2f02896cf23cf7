"""A run: one training that we look after, and its members, generation by generation."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from unicrond.model.mode import Mode
from unicrond.model.strenum import StrEnum
from unicrond.model.workload import PLAIN, Workload


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


@dataclass(frozen=True)
class Assignment:
    """Membership of one generation. `order` tells two proposals for one generation apart."""

    generation: int
    order: str
    slots: tuple[Slot, ...]

    @property
    def world_size(self) -> int:
        return len(self.slots)

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """Nodes in rank order, each once. Asked for in every turn, of ten thousands of slots."""
        return tuple(dict.fromkeys(slot.node for slot in self.slots))


class Phase(StrEnum):
    """What the ranks of one agent are doing."""

    IDLE = "idle"  # no rank was ever started, or all were stopped on order
    STARTING = "starting"
    RUNNING = "running"
    BROKEN = "broken"  # a rank failed, or the lease ran out; others are gone, or wait to regroup
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
    flops: float = 0.0  # of an iteration of its ranks, 0: not counted
    peers_heard: dict[str, float] = field(default_factory=dict)  # node -> Unix seconds
    closed_at: float = 0.0  # when its connection ended, 0 while it is open
    stopped_generation: int = -1  # ranks up to this generation are proved gone on this node
    regrouping: tuple[int, ...] = ()  # ranks of its generation that can go over into the next
    prepared: tuple[str, ...] = ()  # members that wait there to be taken into a generation


class HealStep(StrEnum):
    """
    hold ──┐
      v    v
    stop ──> start ──> (incident resolved)
      │        │
      └────────┴──> requeue ──> (runs again)     end ──> (job over)
         release ──────┘
    """

    HOLD = "hold"  # survivors wait to regroup, the other ranks are proved gone
    STOP = "stop"  # ranks of the old generation proved gone, or their lease has run out
    START = "start"  # the new generation's ranks run
    RELEASE = "release"  # lost nodes leave the job first: a requeue would wait for their loss
    REQUEUE = "requeue"  # Slurm starts the whole job again
    END = "end"  # the job ends with an exit code and a sentence


@dataclass(frozen=True, slots=True)
class Healing:
    """An incident at work: everything needed to go on after a crash of unicrond."""

    incident_id: int
    step: HealStep
    since: float  # Unix seconds, when this step began
    deadline: float
    nodes: tuple[str, ...]  # that the next generation runs on
    lost: tuple[str, ...] = ()  # whose lease must run out before the next generation
    hidden: tuple[str, ...] = ()  # only we cannot reach: their lease runs from the others' stop
    proved_at: float = 0.0  # Unix seconds, when all others had stopped
    spawning: tuple[str, ...] = ()  # whose agent is being started again
    ports: dict[str, int] = field(default_factory=dict)  # node -> a free port found there
    exclude: tuple[str, ...] = ()  # where a requeued job must not start
    expedited: int = 0  # the restart of the job that was told to begin at once
    expedited_at: float = 0.0  # Unix seconds, when that was last
    holding: tuple[str, ...] = ()  # nodes whose survivors are to keep their processes
    held: tuple[str, ...] = ()  # of these, who said that they wait
    replaced: tuple[int, ...] = ()  # ranks that need a new process, though theirs may live
    joining: tuple[str, ...] = ()  # nodes whose ranks are prepared, and no member yet


@dataclass(frozen=True, slots=True)
class Joining:
    """Nodes on their way into a run that goes on meanwhile."""

    incident_id: int
    nodes: tuple[str, ...]
    assignment: Assignment  # of the next generation, as it is to be
    deadline: float  # Unix seconds, for their ranks to be prepared


class LossState(StrEnum):
    """
    suspected ──> confirmed ──> drained ──> released;  or ──> returned | unconfirmed | kept
                                   left ───────┘
    """

    SUSPECTED = "suspected"
    CONFIRMED = "confirmed"  # by Slurm or by a probe
    DRAINED = "drained"
    LEFT = "left"  # alive, but drained by us, and the run goes on without it
    RELEASED = "released"  # given back to Slurm, or Slurm took it
    RETURNED = "returned"  # it was heard again before anybody confirmed its loss
    UNCONFIRMED = "unconfirmed"  # nobody confirmed it in time: left undrained
    KEPT = "kept"  # confirmed, but a guard or Slurm refused the drain or the shrink

    @property
    def settled(self) -> bool:
        return self not in _UNDER_WAY


_UNDER_WAY = frozenset(
    {LossState.SUSPECTED, LossState.CONFIRMED, LossState.DRAINED, LossState.LEFT}
)


@dataclass(frozen=True, slots=True)
class Loss:
    """A node that a run lost, on its way to being confirmed, drained and given back."""

    node: str
    incident_id: int
    since: float
    deadline: float  # for the confirmation
    state: LossState = LossState.SUSPECTED
    waiting: bool = False  # for the outcome of an action
    probed_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Companion:
    """A second job of a run, through which it has more nodes. Times are Unix seconds."""

    incident_id: int  # of the order to grow
    size: int  # nodes asked for
    restarts: int  # of the base, for which it was submitted
    asked_at: float
    deadline: float  # for it to start
    job_id: int = 0  # 0: not submitted yet


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
    whole_nodes: bool = True  # a run on parts of nodes is only observed
    mode: Mode | None = None  # overrides the cluster's
    generation: int = 0
    assignment: Assignment | None = None
    agents: dict[str, AgentView] = field(default_factory=dict)  # by node
    shunned: tuple[str, ...] = ()  # nodes this run moved off
    losses: tuple[Loss, ...] = ()
    early_exits: tuple[tuple[int, str], ...] = ()  # (rank, node) that ended with 0 before others
    generation_since: float = 0.0  # Unix seconds
    generation_iteration: int = -1  # train step at the generation's start
    iteration: int = -1
    counted: int = 0  # iterations complete in this generation
    iteration_since: float = 0.0  # Unix seconds, when either last rose
    failures: tuple[float, ...] = ()  # restarts of the last hour, Unix seconds
    moves: tuple[float, ...] = ()  # off a node on its own agents' word alone; the same
    restarts_without_progress: int = 0
    last_root: str = ""  # node of the last failure, to tell a repeat from a new one
    doubted: int = 0  # the incident whose rule said that a restart would not help
    doubted_generation: int = 0  # that it broke
    finished_code: int | None = None  # the agents' word that the run is over
    end_reason: str = ""
    ended_at: float = 0.0
    healing: Healing | None = None
    lease_seconds: float = 0.0  # the longest that an agent of it keeps
    workload: Workload = PLAIN
    joining: Joining | None = None
    companions: tuple[Companion, ...] = ()
    floor_nodes: int = 0  # that plans leave it in any case; an admin's guarantee
    no_growth_until: float = 0.0  # Unix seconds: it gave nodes back, or could not grow
    hands_off_until: float = 0.0  # Unix seconds: a person set its size, so plans leave it alone

    @property
    def begun_again(self) -> bool:
        """The job that was requeued has begun a generation, which can break like any other."""
        requeued = self.healing is not None and self.healing.step is HealStep.REQUEUE
        return requeued and self.state is RunState.STARTING and self.assignment is not None

    def loss_of(self, node: str) -> Loss | None:
        return next((loss for loss in reversed(self.losses) if loss.node == node), None)
