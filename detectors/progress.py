"""How far each rank came in its collectives, and who is behind. Pure.

Sequence numbers compare only within one process group. A rank that is behind its peers keeps them
waiting; ranks at the same number with different operations or sizes are a program at odds with
itself, and no rank is to blame.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

WORK = re.compile(r"worknccl\(seqnum=(\d+), optype=(\w+)(?:, numelin=(\d+))?", re.IGNORECASE)
GROUP = re.compile(r"\[pg(?: id)? (\d+)[^\]]*?rank \d+\]", re.IGNORECASE)
ENQUEUED = re.compile(
    r"last enqueued (?:nccl )?work: (-?\d+)(?:[^\n]*?last completed (?:nccl )?work: (-?\d+))?",
    re.IGNORECASE,
)
FRAME = re.compile(
    r"(?m)^\s*(?:File \"|\S+ \([^()\n]*\.(?:py|cpp|cc|so)\S*:\d+\)|#\d+ |frame #\d+)"
)
COLLECTIVE = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|broadcast|barrier|all_?to_?all|\b(?:batch_)?i?recv|"
    r"nccl|gloo|_wait\b|synchronize", re.IGNORECASE
)  # fmt: skip
STATUS = re.compile(r"pg_status \d+ |flight recorder [^\n]* entries 0\b")
RECORDED = re.compile(r"pg=\('(\w+)', '([^']*)'\) seq=(\d+) op=(\S+)")


@dataclass(frozen=True, slots=True)
class Step:
    """The last that one rank did in one group; `name` tells groups apart."""

    group: str
    number: int
    operation: str = ""
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    behind: frozenset[int]  # ranks that hold up a group
    margin: int  # by how many collectives at most
    at_odds: bool  # same number, different operations or sizes
    odd: frozenset[int]  # the few that differ from the many
    members: frozenset[int]  # ranks that are in a collective


def place(text: str) -> str:
    """Where a stack dump stands: in a collective, elsewhere, or "" where the text is no stack."""
    if len(FRAME.findall(text)) < 2:
        return ""
    return "collective" if COLLECTIVE.search(text) else "elsewhere"


def is_idle(text: str) -> bool:
    """A flight recorder with a status and no pending entry: the rank is in no collective."""
    return STATUS.search(text) is not None and RECORDED.search(text) is None


def steps(text: str) -> list[Step]:
    recorded = [Step(m[1], int(m[3]), m[4]) for m in RECORDED.finditer(text)]
    if recorded:
        return recorded
    group = GROUP.search(text)
    name = group[1] if group else "0"
    work = WORK.search(text)
    enqueued = ENQUEUED.search(text)
    found = []
    if work:
        size = int(work[3]) if work[3] else None
        found.append(Step(name, int(work[1]), work[2].upper(), size))
    if enqueued:
        found.append(Step(f"{name} enqueued", int(enqueued[1])))
    return found


def compare(by_rank: Mapping[int, list[Step]]) -> Standing:
    groups: dict[str, dict[int, Step]] = defaultdict(dict)
    for rank, taken in by_rank.items():
        for step in taken:
            groups[step.group][rank] = step
    behind: set[int] = set()
    odd: set[int] = set()
    margin, at_odds = 0, False
    for members in groups.values():
        numbers = {rank: step.number for rank, step in members.items()}
        gap = max(numbers.values()) - min(numbers.values())
        late = {rank for rank, n in numbers.items() if n == min(numbers.values())}
        if gap > margin:
            margin, behind = gap, late
        elif gap == margin > 0:
            behind |= late
        elif gap == 0 and len(members) > 1:
            differing = _differing(members)
            at_odds = at_odds or differing is not None
            odd |= differing or set()
    members_of_any = frozenset(rank for members in groups.values() for rank in members)
    return Standing(
        frozenset(behind), margin, at_odds and margin == 0, frozenset(odd), members_of_any
    )


def _differing(members: Mapping[int, Step]) -> set[int] | None:
    """Ranks whose operation or size is not the common one; None where all agree."""
    kinds: dict[tuple[str, int | None], set[int]] = defaultdict(set)
    for rank, step in members.items():
        if step.size is not None:
            kinds[(step.operation, step.size)].add(rank)
    if len(kinds) < 2:
        return None
    smallest, *others = sorted(kinds.values(), key=len)
    return smallest if all(len(smallest) < len(other) for other in others) else set()
