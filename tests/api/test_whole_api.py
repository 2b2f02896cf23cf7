"""Whatever the whole API is asked, it answers: no 5xx, and nothing that OpenAPI does not describe.

What is asked is made from the API's own description, by schemathesis, as an admin and as nobody.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from db.queries import Queries
from db.store import open_store
from tests.contract.test_store_contract import (
    ALLOCATION,
    DECISION,
    DRAIN,
    INCIDENT,
    RUN,
    STOP,
    snapshot,
)
from unicrond.api import whatif
from unicrond.api.app import create_app
from unicrond.api.gate import Gate
from unicrond.api.limits import Limit, Rate
from unicrond.model.incident import Proof, Review
from unicrond.ports import Changes, JournalEntry

EXAMPLES = 12  # of each operation, by each of two callers
ENDLESS = "/v1/events"
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
NO_LIMIT = Rate("questions", 1e9, 1e9)


@dataclass
class Deaf:
    """A Control that takes everything."""

    taken: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self.taken.append(name)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder: Path = tmp_path_factory.mktemp("whole")
    url = f"sqlite:///{folder}/unicron.db"
    review = Review(1, "hang.overdue", Proof.REFUTED, 1.0, "alice")
    with closing(open_store(url)) as store:
        store.save(
            Changes(
                runs=(RUN,), incidents=(INCIDENT,), decisions=(DECISION,), intents=(STOP, DRAIN),
                journal=(JournalEntry(1.0, "decision", "n2 is lost", 4711, 1, "n2", 3),),
                reviews=(review,), snapshot=snapshot(1.0, ALLOCATION), at=1.0,
            )
        )  # fmt: skip
    with closing(Queries(url)) as queries, pytest.MonkeyPatch.context() as patched:
        # A process for each of hundreds of what-ifs would take minutes.
        patched.setattr(whatif.Planner, "_answer", lambda self, words: {"asked": len(words)})
        gate = Gate("alpha", reads=Limit(NO_LIMIT), commands=Limit(NO_LIMIT))
        yield create_app(queries, Deaf(), cluster="alpha", gate=gate)
    shutil.rmtree(folder)


def _asked_by(app: Any, uid: int | None) -> Any:
    async def asked(scope: Any, receive: Any, send: Any) -> None:
        await app(scope if uid is None else scope | {"peer_uid": uid}, receive, send)

    return asked


@pytest.mark.parametrize("uid", [0, None], ids=["root", "nobody"])
def test_whatever_is_asked_is_answered_as_described(app: Any, uid: int | None) -> None:
    schema = schemathesis.openapi.from_asgi("/v1/openapi.json", _asked_by(app, uid))
    asked = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path == ENDLESS:
            continue
        _ask(operation)
        asked += 1
    assert asked >= 25


def _ask(operation: Any) -> None:
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize=True,
        phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy())
    def answers(case: Any) -> None:
        case.call_and_validate(checks=CHECKS)

    answers()
