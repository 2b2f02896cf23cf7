"""Every command that was given: who, when, why, from where, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, insert

from db.codec import dumps
from db.schema import audit


@dataclass(frozen=True, slots=True)
class Audited:
    """`via`: unix, token or munge. `origin`: where from. `refusal`: why it was not taken, or ""."""

    at: float
    who: str
    role: str
    via: str
    origin: str
    command: str
    subject: str
    why: str
    refusal: str = ""


def write(connection: Connection, entry: Audited) -> None:
    row = {"at": entry.at, "who": entry.who, "command": entry.command, "doc": dumps(entry)}
    connection.execute(insert(audit).values(row))
