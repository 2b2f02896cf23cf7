"""What was chosen and why, the imperatives that follow, and how each ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from unicrond.model.mode import Mode as Mode
from unicrond.model.run import Assignment
from unicrond.model.strenum import StrEnum


class ActionKind(StrEnum):
    # orders to an agent: numbers and node names only, never a command line
    STOP_RANKS = "stop_ranks"  # generation
    HOLD_RANKS = "hold_ranks"  # generation, seconds: who can regroup waits for so long
    PREPARE_RANKS = "prepare_ranks"  # assignment: its new members are started, and wait
    START_RANKS = "start_ranks"  # assignment; master_node, master_port
    SPAWN_AGENT = "spawn_agent"  # target: node whose agent died; companion: its job, 0: the base
    # nodes, exclude, minutes; within: seconds to start in; qos, partition: "" as the base's
    SUBMIT_COMPANION = "submit_companion"
    END_RUN = "end_run"  # exit_code, reason
    # Slurm
    DRAIN = "drain"
    RESUME = "resume"  # reason: as the drain's; undoes it
    SHRINK = "shrink"  # keep: nodes that stay; job_id, where it is a companion
    CANCEL = "cancel"  # job_id of a companion, uid of its user
    REQUEUE = "requeue"  # restarts: Slurm's count before
    RESERVE = "reserve"  # nodes, user: kept for two minutes for the run that is being requeued
    EXPEDITE = "expedite"  # exclude: nodes; starts the requeued job once it is pending
    # the network
    PROBE = "probe"  # TCP to the node's slurmd port
    # people
    NOTIFY = "notify"


@dataclass(frozen=True, slots=True)
class ActionKey:
    """Makes an action idempotent: the same key is never carried out twice."""

    incident_id: int
    generation: int
    ordinal: int

    def __str__(self) -> str:
        return f"{self.incident_id}.{self.generation}.{self.ordinal}"


@dataclass(frozen=True, slots=True)
class Action:
    """One imperative to the outside. `node`: the agent or node it concerns, "" for a whole run."""

    key: ActionKey
    kind: ActionKind
    run_id: int | None
    node: str = ""
    args: dict[str, object] = field(default_factory=dict)  # numbers and names only
    assignment: Assignment | None = None  # of PREPARE_RANKS, START_RANKS


class OutcomeState(StrEnum):
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"  # looked again, and it was no longer right
    MOOT = "not needed"  # something else made it superfluous


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an action ended, `at` Unix seconds; it re-enters the loop as an event."""

    key: ActionKey
    at: float
    state: OutcomeState
    detail: str = ""
    data: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Alternative:
    """Something that was weighed; `price` in words until the planner prices it in FLOP/s."""

    name: str
    chosen: bool
    price: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Chosen actions and the reason in words. `acts` is false in modes observe and paused."""

    at: float
    incident_id: int
    run_id: int | None
    generation: int
    choice: str
    reason: str
    acts: bool
    alternatives: tuple[Alternative, ...] = ()
