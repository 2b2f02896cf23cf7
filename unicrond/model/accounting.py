"""What Slurm's accounting keeps of a job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spell:
    """A stretch in which a job ran on the same nodes. Times are Unix seconds."""

    job_id: int
    user: str
    name: str
    state: str  # Slurm's first word: COMPLETED, NODE_FAIL, REQUEUED, ...
    submitted: float
    began: float
    ended: float | None  # None: it still runs
    gpus: int
    nodes: tuple[str, ...]
