"""Which rank a hang is the fault of, from what the agents saw of each. Pure.

    1. a process that is stopped, traced or dead while others wait        its own fault, for certain
    2. everyone is overdue, and all but a few wait in a collective        the few that are elsewhere
    3. everyone is overdue, and all but a few are in a later collective   the few that are behind
    4. everyone is overdue                                                unknown: nobody is blamed
Short of that it is a suspicion: an iteration over 3 x the average may still end well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HALTED = {"T": "is stopped", "t": "is held by a debugger", "Z": "is dead", "X": "is dead"}
WAITING = ("torch/distributed/", "torch/nn/parallel/", "torch/autograd/graph.py")
FEW = 0.5  # at most this share of the ranks may be called culprits


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one agent saw of one rank whose iteration takes too long."""

    rank: int
    node: str
    process_state: str  # /proc's letter
    seconds: float  # since its last complete iteration
    usual_seconds: float
    overdue: bool
    where: str = ""  # innermost line of its own stack, "" when it could not be had
    collective: str = ""  # its last one in words, as its page has it: also of a stopped rank
    collectives: int = 0  # how many its script has begun, 0: not known
    launched: int = 0  # how many torch has, those within its modules too, 0: not known

    @property
    def waits(self) -> bool:
        """Whether it sits in a collective, as far as its stack tells."""
        return any(part in self.where for part in WAITING)

    @property
    def place(self) -> str:
        """Where it is, for a person; "" when nothing is known."""
        at = f"at {self.where}" if self.where else ""
        return ", ".join(part for part in (at, self.collective) if part)


@dataclass(frozen=True, slots=True)
class Finding:
    """`rank` None: the run hangs, and nobody can be named. `rule` says by which of the four."""

    rank: int | None
    node: str
    reason: str
    rule: str


def find(evidence: Sequence[Evidence], world_size: int) -> Finding | None:
    """None while it is only a suspicion."""
    for seen in evidence:
        if seen.process_state in HALTED:
            return _blame(seen, HALTED[seen.process_state], "hang.halted")
    if len(evidence) < world_size or not all(seen.overdue for seen in evidence):
        return None
    elsewhere = [seen for seen in evidence if seen.where and not seen.waits]
    if elsewhere and len(elsewhere) <= FEW * world_size:
        seen = min(elsewhere, key=lambda e: e.rank)
        what = f"is at {seen.where}, while the others wait for it"
        return _blame(seen, what, "hang.elsewhere")
    if behind := _behind(evidence, world_size):
        seen = min(behind, key=lambda e: e.rank)
        furthest = max(_count(e, evidence) for e in evidence)
        what = f"is behind in the world's collectives: the others wait in number {furthest}"
        return _blame(seen, what, "hang.behind")
    longest = max(evidence, key=lambda e: e.seconds)
    return Finding(
        None,
        longest.node,
        f"all {world_size} ranks stand still for {longest.seconds:.0f} s, "
        f"{longest.usual_seconds:.2f} s is usual; no rank stands out",
        "hang.overdue",
    )


def _behind(evidence: Sequence[Evidence], world_size: int) -> list[Evidence]:
    """The few that have begun fewer collectives than all the rest; where all can be compared."""
    counts = {_count(seen, evidence) for seen in evidence}
    if 0 in counts or len(counts) != 2:
        return []
    behind = [seen for seen in evidence if _count(seen, evidence) == min(counts)]
    return behind if len(behind) <= FEW * world_size else []


def _count(seen: Evidence, evidence: Sequence[Evidence]) -> int:
    """By torch's count where all ranks have told it, else by the script's."""
    return seen.launched if all(one.launched for one in evidence) else seen.collectives


def _blame(seen: Evidence, what: str, rule: str) -> Finding:
    return Finding(
        seen.rank,
        seen.node,
        f"rank {seen.rank} on {seen.node} {what}: no train step for {seen.seconds:.1f} s, "
        f"{seen.usual_seconds:.2f} s is usual"
        + (f" ({seen.collective})" if seen.collective else ""),
        rule,
    )
