"""Where a single look ended, kept in a line of text until the next one: 4711 mc0=0/12 mc1=0/0."""

from __future__ import annotations

from dataclasses import dataclass, field

from detectors.readings import Memory


@dataclass(frozen=True, slots=True)
class Mark:
    """`position` in the kernel log; None: nothing was read yet."""

    position: int | None = None
    counts: dict[str, Memory] = field(default_factory=dict)

    def to_text(self) -> str:
        counts = (f" {name}={m.uncorrected}/{m.corrected}" for name, m in self.counts.items())
        return f"{self.position}{''.join(counts)}\n"

    @classmethod
    def from_text(cls, text: str) -> Mark:
        """Raises ValueError for what is none."""
        position, *counts = text.split()
        return cls(int(position), dict(map(_count, counts)))


def _count(text: str) -> tuple[str, Memory]:
    name, _, numbers = text.partition("=")
    uncorrected, corrected = numbers.split("/")
    return name, Memory(int(uncorrected), int(corrected))
