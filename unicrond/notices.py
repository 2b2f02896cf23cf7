"""What people are told, and when: grouped, each once, and not what they silenced. Pure.

a notice waits GROUP_SECONDS for others, then all that wait go out in one message
the same words about the same run and node are not sent again within REPEAT_SECONDS
a silence (a pause of scope "notice") holds back: all · run 4711 · node n2 · incident 12
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from unicrond.model.decision import ActionKey
from unicrond.model.pause import Pause, PauseScope

GROUP_SECONDS = 10.0
REPEAT_SECONDS = 3600.0
MOST_SHOWN = 20  # in one message
MOST_REMEMBERED = 1_000


@dataclass(frozen=True, slots=True)
class Notice:
    key: ActionKey
    text: str
    run_id: int | None = None
    node: str = ""

    @property
    def about(self) -> tuple[str, int | None, str]:
        return self.text, self.run_id, self.node

    def silenced(self, pauses: Iterable[Pause]) -> bool:
        names = {"all", f"run {self.run_id}", f"node {self.node}"}
        names.add(f"incident {self.key.incident_id}")
        return any(p.scope is PauseScope.NOTICE and p.value in names for p in pauses)

    def __str__(self) -> str:
        run = "" if self.run_id is None else f"run {self.run_id}: "
        return f"{run}{self.text} (unicronctl why i{self.key.incident_id})"


@dataclass(frozen=True, slots=True)
class Message:
    subject: str
    text: str
    notices: tuple[Notice, ...]


@dataclass(frozen=True, slots=True)
class Sorted:
    """What is due: to be sent, and those that need not be, each with the reason."""

    message: Message | None = None
    held_back: tuple[tuple[Notice, str], ...] = ()


@dataclass(slots=True)
class Notices:
    cluster: str
    _waiting: list[Notice] = field(default_factory=list)
    _due: float | None = None
    _sent: dict[tuple[str, int | None, str], float] = field(default_factory=dict)

    def add(self, notice: Notice, now: float) -> None:
        self._waiting.append(notice)
        if self._due is None:
            self._due = now + GROUP_SECONDS

    @property
    def due(self) -> float | None:
        """When `take` has something to say, None while nothing waits."""
        return self._due

    def take(self, pauses: Iterable[Pause], now: float) -> Sorted:
        pauses, waiting = tuple(pauses), self._waiting
        self._waiting, self._due = [], None
        new: list[Notice] = []
        held: list[tuple[Notice, str]] = []
        for notice in waiting:
            if notice.silenced(pauses):
                held.append((notice, "silenced"))
            elif now < self._sent.get(notice.about, float("-inf")) + REPEAT_SECONDS:
                held.append((notice, "the same was told within the hour"))
            else:
                self._sent[notice.about] = now
                new.append(notice)
        while len(self._sent) > MOST_REMEMBERED:
            del self._sent[next(iter(self._sent))]
        return Sorted(self._message(tuple(new)) if new else None, tuple(held))

    def _message(self, notices: tuple[Notice, ...]) -> Message:
        lines = [f"- {notice}" for notice in notices[:MOST_SHOWN]]
        more = len(notices) - MOST_SHOWN
        if more > 0:
            lines.append(f"- and {more} more: unicronctl incidents")
        one = notices[0].text if len(notices) == 1 else f"{len(notices)} things need a person"
        subject = f"[unicron {self.cluster}] {' '.join(one.split())[:120]}"
        return Message(subject, "\n".join(lines), notices)

    def forget(self, notices: Iterable[Notice]) -> None:
        """They did not go out after all: the same may be said again."""
        for notice in notices:
            self._sent.pop(notice.about, None)
