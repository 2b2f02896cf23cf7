"""What the node's agent tells its ranks of replicas: a file in their folder, replaced as a whole.

    {"at": seconds, monotonic, "copies": on how many other nodes, "off": why none are made,
     "set": "set-TOKEN", "safe": {"RANK": [train steps that are there]}}

    set-TOKEN/elsewhere-RANK    of a rank's: other nodes have all that it keeps anyway

No file, an old one, or one that says why it is off: ranks go on as if there were no other nodes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

NAME = "replicas"
ELSEWHERE = "elsewhere-{}"
OLD_SECONDS = 30.0


@dataclass(frozen=True)
class Told:
    copies: int = 0
    off: str = ""
    set: str = ""
    safe: Mapping[str, Sequence[int]] = field(default_factory=dict)


def write(folder: Path, told: Told) -> None:
    """Raises OSError."""
    partial = folder / f".{NAME}"
    partial.write_text(json.dumps({"at": time.monotonic(), **asdict(told)}))
    partial.replace(folder / NAME)


def read(folder: Path) -> Told:
    try:
        body = json.loads((folder / NAME).read_text())
        at, told = float(body.pop("at")), Told(**body)
        safe = {str(rank): [int(step) for step in steps] for rank, steps in told.safe.items()}
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return Told(off="no agent makes any")
    if time.monotonic() - at > OLD_SECONDS:
        return Told(off="the agent has said nothing for long")
    return Told(int(told.copies), str(told.off), str(told.set), safe)


def safe(told: Told, home: str, rank: int, whole: Sequence[int]) -> tuple[int, ...]:
    """Of the train steps that are whole here, those that may be relied on."""
    if told.off:
        return tuple(whole)
    there = told.safe.get(str(rank), ()) if told.set == home else ()
    return tuple(step for step in whole if step in there)
