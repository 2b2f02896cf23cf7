"""What a simulated cluster is in at one moment: the engine changes it, rules read it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from planner.objective import Claim
from simulator.model import Cause, Cluster, Freed, Policy, RunSpec

POOL = "gpu"


class Phase(StrEnum):
    """
    absent ──> queued <──> changing ──> training ──> ended
                  ^           ^            │
                  ├──── detecting <────────┘
                  └──── waiting <── detecting
    """

    ABSENT = "absent"
    QUEUED = "queued"  # it has no nodes
    CHANGING = "changing"
    TRAINING = "training"
    DETECTING = "detecting"  # it stands still, and nobody has noticed yet
    WAITING = "waiting"  # it keeps its sound nodes and waits for more
    ENDED = "ended"


CAUSE = {
    Phase.CHANGING: Cause.TRANSITION,
    Phase.DETECTING: Cause.DETECTION,
    Phase.WAITING: Cause.WAITING,
}
GONE = (Phase.ABSENT, Phase.ENDED)


@dataclass(slots=True)
class RunNow:
    """`home` is the size that it began with. The first of `nodes` is its batch host."""

    spec: RunSpec
    home: int = 0
    nodes: list[int] = field(default_factory=list)  # sound ones
    lost: set[int] = field(default_factory=set)
    phase: Phase = Phase.ABSENT
    since: int = 0
    epoch: int = 0  # events of an earlier epoch are void
    severity: int = 0  # of what it suffers from
    speed: float = 0.0  # FLOP/s, while it trains
    working: int = 0  # nodes that this speed takes
    done: float = 0.0  # FLOP
    trained: int = 0  # milliseconds
    changes: int = 0

    @property
    def size(self) -> int:
        return len(self.nodes) + len(self.lost)

    @property
    def present(self) -> bool:
        return self.phase not in GONE

    @property
    def standing(self) -> bool:
        """It has trouble that was noticed, or it lacks nodes."""
        return bool(self.lost) or self.phase in (Phase.WAITING, Phase.QUEUED)


@dataclass(slots=True)
class State:
    cluster: Cluster
    policy: Policy
    runs: dict[int, RunNow]
    free: set[int]
    now: int = 0
    down: set[int] = field(default_factory=set)
    others: set[int] = field(default_factory=set)  # held by somebody else's jobs
    next_loss_seconds: float = 0.0  # filled for a policy that foresees
    there: dict[int, RunNow] | None = None  # runs that are present, where somebody keeps count

    def present(self) -> Iterator[RunNow]:
        runs = self.runs if self.there is None else self.there
        return (run for run in runs.values() if run.present)

    @property
    def available(self) -> int:
        """Nodes that a division may give out."""
        return len(self.free) + sum(len(run.nodes) for run in self.present())

    @property
    def gives_and_takes(self) -> bool:
        """Whether a node that one run gives up can go to another."""
        return self.cluster.queue.freed is Freed.OURS

    def claim(self, run: RunNow) -> Claim:
        """The run as the production planner sees it; its worker is a node."""
        spec, size = run.spec, run.size
        legal = spec.legal(size)
        return Claim(
            run_id=spec.run_id,
            throughput={POOL: spec.flops},
            transition=self.policy.timing.change,
            pool=POOL,
            size=size,
            present_flops=float(spec.flops[legal]) if legal else 0.0,
            faulty=len(run.lost),
            broken=run.phase in (Phase.DETECTING, Phase.WAITING),
            weight=spec.weight,
            pinned=min(1, len(run.nodes)),
        )
