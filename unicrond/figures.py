"""What the loop can tell of itself in numbers; it goes out with the heartbeat, for /metrics.

waiting_events          in the loop's queue
pending_actions         without an outcome yet
drains_left, drains_allowed    of this hour's budget
runs_out_of_restarts    whose budget of this hour is spent
turns, turn_seconds     made since the start, and the time that they took
slurm_calls, slurm_failures, slurm_seconds    the same of commands that act on Slurm

Pure but for what it counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from unicrond.core.guards import restarts_left
from unicrond.core.state import State
from unicrond.model.decision import ActionKind

HOUR_SECONDS = 3600.0


@dataclass(slots=True)
class Timed:
    """How often something was done, and how long it took in all."""

    count: int = 0
    failed: int = 0
    seconds: float = 0.0

    def add(self, seconds: float, failed: bool = False) -> None:
        self.count += 1
        self.failed += failed
        self.seconds += seconds


def figures(state: State, now: float, waiting: int, turns: Timed, slurm: Timed) -> dict[str, float]:
    policy = state.policy
    under_way = sum(action.kind is ActionKind.DRAIN for action, _ in state.pending.values())
    done = sum(at > now - HOUR_SECONDS for at, _ in state.drains)
    spent = (run for run in state.live_runs() if not restarts_left(run, now, policy))
    return {
        "waiting_events": waiting,
        "pending_actions": len(state.pending),
        "drains_left": max(0, policy.drains_per_hour - done - under_way),
        "drains_allowed": policy.drains_per_hour,
        "runs_out_of_restarts": sum(1 for _ in spent),
        "turns": turns.count,
        "turn_seconds": round(turns.seconds, 6),
        "slurm_calls": slurm.count,
        "slurm_failures": slurm.failed,
        "slurm_seconds": round(slurm.seconds, 6),
    }
