"""The nouns of a simulation. Times are whole milliseconds since its start, so that sums are exact.

GPU-time goes to exactly one cause at each moment:

    useful       trains at full speed
    sub_healthy  trains, and yields less than full speed: the share that the policy's way costs
    detection    stands still, and nobody has noticed yet
    transition   stands still while its run is changed, work since the last checkpoint included
    waiting      sound, held by a run that waits for another node
    idle         sound, and nobody trains on it
    repair       out of service
    others       given out by Slurm to somebody else's job
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from planner.kernels import Floats
from planner.objective import Transition
from simulator.kinds import KINDS, Kind, Method

SECOND = 1000
HOUR = 3600 * SECOND
DAY = 24 * HOUR


class Cause(StrEnum):
    USEFUL = "useful"
    SUB_HEALTHY = "sub_healthy"
    DETECTION = "detection"
    TRANSITION = "transition"
    WAITING = "waiting"
    IDLE = "idle"
    REPAIR = "repair"
    OTHERS = "others"


@dataclass(frozen=True, slots=True)
class Failure:
    """`repair` is how long these nodes are out of service, 0 where the kind spares them. With a
    `run_id` it hits one node of that run, wherever it is; `nodes` is empty then."""

    at: int
    nodes: tuple[int, ...]
    kind: str
    repair: int = 0
    run_id: int | None = None

    @property
    def lost(self) -> int:
        """How many nodes it takes."""
        return (len(self.nodes) or 1) if self.repair else 0

    @property
    def how(self) -> Kind:
        return KINDS[self.kind]


@dataclass(frozen=True, slots=True, eq=False)
class RunSpec:
    """`flops[n]` is T on n nodes, NaN where n is no legal size."""

    run_id: int
    name: str
    flops: Floats
    weight: float = 1.0
    parameters: float = 1.0  # of its model, for division by size
    start_nodes: int | None = None  # None: the start rule of the cluster says
    arrives: int = 0
    work: float | None = None  # FLOP until it ends, None: it goes on for ever

    @property
    def least(self) -> int:
        return next(n for n in range(1, self.flops.size) if self.flops[n] == self.flops[n])

    def legal(self, nodes: int) -> int:
        """The largest legal size of at most so many nodes."""
        for n in range(min(nodes, self.flops.size - 1), 0, -1):
            if self.flops[n] == self.flops[n]:
                return n
        return 0


class Freed(StrEnum):
    """Who gets a node that a run gives back, or that returns from repair."""

    OURS = "ours"  # reserved: the policy has it
    SLURM = "slurm"  # the head of Slurm's queue: often somebody else's job


@dataclass(frozen=True, slots=True)
class Queue:
    freed: Freed = Freed.OURS
    others_waiting: float = 0.0  # probability that somebody else's job takes a freed node
    others_hold: int = DAY  # mean time that it holds it


@dataclass(frozen=True, slots=True)
class Occupied:
    """Somebody else's jobs take so many nodes, as far as there are free ones then."""

    at: int
    until: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """`failures_per_node_second`, `repair_seconds`: what a planner is told, the laws' own means."""

    nodes: int
    gpus: int  # of a node
    nodes_per_switch: int
    runs: tuple[RunSpec, ...]
    length: int
    failures_per_node_second: float
    repair_seconds: float
    start: str = "replan"  # rule of the first division
    queue: Queue = field(default_factory=Queue)
    others: tuple[Occupied, ...] = ()  # told, beside those that the queue draws


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a policy takes, in seconds; work that is done again is part of a change."""

    detection: Mapping[Method, float]
    change: Transition
    start: float  # of a run that has nothing, again
    retry: float
    first: float | None = None  # of one that has not trained yet, as `start` where not told


@dataclass(frozen=True, slots=True)
class Policy:
    """Data: a rule that divides nodes, and figures. `sources` says where each figure is from."""

    name: str
    about: str
    rule: str
    timing: Timing
    healthy_percent: float = 100.0  # of the speed that its runs have where nothing ever fails
    keeps_failed: bool = False  # its runs keep failed nodes, and have them again after the repair
    foresees: bool = False  # it knows when the next nodes will be lost
    floors: bool = True  # no run gets less than its least size while nodes are there
    margin: float = 1.0
    sources: Mapping[str, str] = field(default_factory=dict)
