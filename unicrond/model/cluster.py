"""What Slurm says about nodes and jobs, in our nouns. Never a hostlist, a JSON key or a column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unicrond.model.strenum import StrEnum


class NodeState(StrEnum):
    UP = "up"
    DRAINED = "drained"  # draining too: no new job may start there
    DOWN = "down"  # Slurm does not hear its slurmd
    UNKNOWN = "unknown"  # never to be read as healthy, never as gone


class JobState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    COMPLETING = "completing"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    NODE_FAIL = "node_fail"
    PREEMPTED = "preempted"
    UNKNOWN = "unknown"

    @property
    def live(self) -> bool:
        """Whether the job holds or may still get nodes."""
        return self in _LIVE


_LIVE = frozenset(
    {
        JobState.PENDING,
        JobState.RUNNING,
        JobState.COMPLETING,
        JobState.SUSPENDED,
        JobState.UNKNOWN,
    }
)


@dataclass(frozen=True, slots=True)
class Node:
    """One compute node. `reason`, `reason_user`: empty when it is not drained or down."""

    name: str
    state: NodeState
    raw_state: str  # Slurm's own words, for people
    gpus: int = 0
    partitions: tuple[str, ...] = ()
    reason: str = ""
    reason_user: str = ""
    address: str = ""
    port: int = 6818  # of its slurmd
    gpu_type: str = ""  # as Slurm names it, "" where it does not
    away_at: float = 0.0  # Unix seconds, when a maintenance window begins; 0: none is announced
    switch: str = ""  # that it hangs on, of Slurm's topology; "" where none is told


@dataclass(frozen=True, slots=True)
class Allocation:
    """One Slurm job with GPUs. Times are Unix seconds, 0 when unknown."""

    job_id: int
    name: str
    user: str
    uid: int
    account: str
    partition: str
    state: JobState
    nodes: tuple[str, ...]  # in Slurm's order, empty while pending
    batch_host: str
    gpus: int
    submit_time: float = 0.0
    start_time: float = 0.0
    end_time: float = 0.0
    time_limit_seconds: int = 0  # 0: unlimited
    restarts: int = 0
    reason: str = ""  # why it is pending
    comment: str = ""
    whole_nodes: bool = True


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at the whole cluster, `at` Unix seconds. None means unknown, which is not "none"."""

    at: float
    nodes: Mapping[str, Node] | None
    allocations: Mapping[int, Allocation] | None
    error: str = ""  # why something is unknown
