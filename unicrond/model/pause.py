"""What people paused beside the mode: a partition, a kind of action, what they are told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from unicrond.model.strenum import StrEnum

MOST_PAUSES = 100


class PauseScope(StrEnum):
    PARTITION = "partition"
    ACTION = "action"
    NOTICE = "notice"  # what people are told: all, run 4711, node n2, incident 12


@dataclass(frozen=True, slots=True)
class Pause:
    """`value`: the partition, or the kind of action."""

    scope: PauseScope
    value: str
    at: float
    who: str
    why: str = ""

    def __str__(self) -> str:
        reason = f" ({self.why})" if self.why else ""
        return f"{self.scope} {self.value} is paused by {self.who}{reason}"


@dataclass(frozen=True, slots=True)
class Pauses:
    """All that hold, as they are kept."""

    held: tuple[Pause, ...] = ()


def paused(pauses: Iterable[Pause], scope: PauseScope, value: str) -> Pause | None:
    return next((p for p in pauses if (p.scope, p.value) == (scope, value)), None)
