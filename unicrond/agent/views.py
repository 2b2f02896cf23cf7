"""What this agent knows of the run's other agents, from what they sent. No clock of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unicrond.agent.leader import Peer
from unicrond.agent.lease import NEVER, Report
from unicrond.errors import ProtocolError
from unicrond.link import fields
from unicrond.link.frames import Body
from unicrond.model.run import Phase

OLDEST_SECONDS = NEVER
NOT_ENDING = -1


@dataclass(frozen=True, slots=True)
class Seen:
    """One agent's last word, received at `at` (monotonic)."""

    at: float
    phase: Phase
    generation: int
    stopped_generation: int
    ranks: int
    exit_code: int
    ending: int  # exit code of the run that it is ending with, or NOT_ENDING
    daemon_age: float
    slurm_age: float


def read(body: Body, now: float) -> Seen:
    """Raises ProtocolError."""
    try:
        phase = Phase(fields.text(body, "phase", 100))
    except ValueError as error:
        raise ProtocolError(f"`phase`: {error}") from error
    return Seen(
        at=now,
        phase=phase,
        generation=fields.integer(body, "generation"),
        stopped_generation=fields.integer(body, "stopped_generation", -1),
        ranks=fields.integer(body, "ranks", 1, 1024),
        exit_code=fields.integer(body, "exit_code", 0, 255),
        ending=fields.integer(body, "ending", NOT_ENDING, 255),
        daemon_age=fields.number(body, "daemon_age", 0, OLDEST_SECONDS),
        slurm_age=fields.number(body, "slurm_age", 0, OLDEST_SECONDS),
    )


def peer(seen: Seen, heard: float, now: float) -> Peer:
    """`heard` monotonic: the agent itself may be heard through a hub after its last full word."""
    age = now - max(seen.at, heard)
    return Peer(age, seen.phase, seen.generation, seen.ranks, seen.exit_code)


def takes_part(seen: Seen, generation: int) -> bool:
    """Not any more once that generation broke there, was stopped, or a newer one came."""
    if seen.generation == generation and seen.phase is Phase.BROKEN:
        return False
    return seen.generation <= generation and seen.stopped_generation < generation


def reports(seen: Mapping[str, Seen], now: float) -> list[Report]:
    return [Report(now - s.at, s.daemon_age, s.slurm_age) for s in seen.values()]
