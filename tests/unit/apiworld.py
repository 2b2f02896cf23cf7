"""The API's application within this process: who asks it, and a Control that notes commands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx

from db.audit import Audited
from db.store import SqlStore
from tests.contract.test_store_contract import (
    DECISION,
    DRAIN,
    INCIDENT,
    KEY,
    RUN,
    STOP,
    snapshot,
)
from unicrond.api.heartbeat import HEARTBEAT_KEY, Heartbeat
from unicrond.errors import Unavailable
from unicrond.model.decision import Mode, Outcome, OutcomeState
from unicrond.model.incident import Proof
from unicrond.ports import Changes, JournalEntry

NOW = 1_700_000_000.0
OWNER, STRANGER = RUN.uid, 4_000_000


class NotingControl:
    def __init__(self) -> None:
        self.fault = ""
        self.commands: list[tuple[Mode, int | None, str, str]] = []
        self.reviews: list[tuple[int, Proof, str, bool, str]] = []
        self.notes: list[Audited] = []
        self.sizes: list[tuple[int, int, str, str]] = []
        self.shares: list[tuple[int, float | None, int | None, str, str]] = []

    def note(self, entry: Audited) -> None:
        self.notes.append(entry)

    def set_mode(self, mode: Mode, run_id: int | None, who: str, why: str) -> None:
        if self.fault:
            raise Unavailable(self.fault)
        self.commands.append((mode, run_id, who, why))

    def review(self, incident_id: int, proof: Proof, who: str, official: bool, why: str) -> None:
        self.reviews.append((incident_id, proof, who, official, why))

    def set_share(
        self, run_id: int, weight: float | None, floor_nodes: int | None, who: str, why: str
    ) -> None:
        self.shares.append((run_id, weight, floor_nodes, who, why))

    def resize(self, run_id: int, nodes: int, who: str, why: str) -> None:
        self.sizes.append((run_id, nodes, who, why))


class Asker:
    """Asks the app within this process, as `uid` over the Unix socket or as nobody over TCP."""

    def __init__(self, app: Any, uid: int | None) -> None:
        self._app, self._uid = app, uid

    def get(self, path: str, **options: Any) -> httpx.Response:
        return asyncio.run(self._ask("GET", path, **options))

    def post(self, path: str, **options: Any) -> httpx.Response:
        return asyncio.run(self._ask("POST", path, **options))

    async def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self._with_peer, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://unicrond") as client:
            return await client.request(method, path, **options)

    async def _with_peer(self, scope: Any, receive: Any, send: Any) -> None:
        peer = {} if self._uid is None else {"peer_uid": self._uid}
        await self._app(scope | peer, receive, send)


Client = Callable[..., Asker]


def beat(store: SqlStore, **change: Any) -> None:
    heartbeat = Heartbeat(NOW - 1.0, "0.1.0", Mode.ACTIVE, 3, NOW - 2.5)
    store.put_meta(HEARTBEAT_KEY, replace(heartbeat, **change))


def error(response: httpx.Response) -> tuple[int, str, str]:
    body = response.json()
    assert set(body) == {"code", "message"}
    return response.status_code, body["code"], body["message"]


def tell_a_story(store: SqlStore) -> None:
    store.save(
        Changes(
            runs=(RUN,),
            incidents=(INCIDENT,),
            decisions=(DECISION,),
            intents=(STOP, DRAIN),
            outcomes=(Outcome(KEY, 12.0, OutcomeState.DONE, "2 ranks"),),
            snapshot=snapshot(NOW),
            journal=(
                JournalEntry(10.0, "signal", "n2 is silent", 4711, 1, "n2", 3),
                JournalEntry(11.0, "decision", "n2 is lost", 4711, 1, "", 3),
            ),
        )
    )
