"""The Credentials port: proves which user wrote something (munge.py | fakecredentials.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Opened:
    """What a credential holds, the user who sealed it, and the address of the host where."""

    uid: int
    payload: bytes
    origin: str = ""


class Credentials(Protocol):
    """Both calls may take seconds; they raise Unavailable when the service does not answer."""

    def seal(self, payload: bytes, for_uid: int | None) -> str:
        """A credential by the caller's user; only `for_uid` can open it, anyone when None."""

    def open(self, text: str) -> Opened:
        """What `text` holds. Refused if it is forged, replayed, expired or for somebody else."""
