"""How fast the links' clockwork runs. Only tests run it faster than the default."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    beat_seconds: float = 1.0
    silence_seconds: float = 3.0  # nothing heard for so long: the link is dropped and dialed anew
    first_retry_seconds: float = 0.05
    longest_retry_seconds: float = 1.0
    refused_retry_seconds: float = 30.0  # after a refusal that asks for no retry
    spare_seconds: float = 5.0  # a peer's link beyond the hubs is kept for so long

    def retry_seconds(self, failures: int) -> float:
        """Doubles from failure to failure; the caller adds the jitter."""
        return min(
            self.longest_retry_seconds, self.first_retry_seconds * float(1 << min(failures, 10))
        )


PACE = Pace()
