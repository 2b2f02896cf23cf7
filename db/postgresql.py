"""Connections to PostgreSQL on which no answer is waited for without a limit.

The server's own limit of a statement is of no use when the server itself hangs, and TCP's when its
host still answers. Needs psycopg, so it is imported where a URL asks for it.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import psycopg
from sqlalchemy import Engine, event


def limit(engine: Engine, seconds: float) -> None:
    """From now on the engine's connections are given up after so long a silence."""

    class Limited(psycopg.Connection[Any]):
        def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
            return super().wait(_within(gen, seconds, self), *args, **options)

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: object, _record: object, args: list[Any], params: dict[str, Any]) -> Any:
        return Limited.connect(*args, **params)


def _within(
    gen: Generator[Any, Any, Any], seconds: float, connection: psycopg.Connection[Any]
) -> Generator[Any, Any, Any]:
    """psycopg sends what became ready, or at every tenth of a second that nothing did."""
    deadline, ready = time.monotonic() + seconds, None
    while True:
        try:
            wanted = gen.send(ready)
        except StopIteration as done:
            return done.value
        ready = yield wanted
        if not ready and time.monotonic() > deadline:
            connection.pgconn.finish()
            raise psycopg.OperationalError(f"the server said nothing for {seconds:g} s")
