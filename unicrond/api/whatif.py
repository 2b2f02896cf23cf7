"""What-ifs: the planner, asked in a process of its own, one at a time, for so long and no longer.

`python -m unicrond.api.whatif` reads {"next": false, "question": {...}} and writes the answer, or
{"error": "a sentence"}; docs/planner.md describes both.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any

from fastapi import APIRouter

from db.queries import Queries
from unicrond.api.callers import Seeing
from unicrond.api.errors import NotFound
from unicrond.api.reports import (
    FailoverEntryOut,
    FailoverOut,
    WhatIfIn,
    WhatIfOut,
)
from unicrond.errors import BadInput, Refused, Unavailable

LONGEST_SECONDS = 60.0


class Planner:
    """Asks the process; remembers the failover table of the newest plan."""

    def __init__(self, longest_seconds: float = LONGEST_SECONDS) -> None:
        self._longest_seconds = longest_seconds
        self._busy = threading.Lock()
        self._table: tuple[float, list[dict[str, Any]]] = (0.0, [])

    def ask(self, question: Any, following: bool) -> Any:
        """Raises BadInput where the planner does, Unavailable where it takes too long."""
        if not self._busy.acquire(blocking=False):
            raise Unavailable("another what-if is being computed: try again in a moment")
        try:
            return self._answer(json.dumps({"next": following, "question": question}))
        finally:
            self._busy.release()

    def table(self, at: float, question: Any) -> list[dict[str, Any]]:
        if self._table[0] != at:
            self._table = (at, self.ask(question, True))
        return self._table[1]

    def _answer(self, words: str) -> Any:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "unicrond.api.whatif"],
                input=words, capture_output=True, text=True, timeout=self._longest_seconds,
                check=False,
            )  # fmt: skip
            answer = json.loads(done.stdout)
        except subprocess.TimeoutExpired:
            raise BadInput(f"question: not answered within {self._longest_seconds:g} s") from None
        except (OSError, ValueError) as error:
            raise Unavailable(f"the planner did not answer: {error}") from None
        if isinstance(answer, dict) and "error" in answer:
            raise BadInput(f"question: {answer['error']}")
        return answer


def routes(queries: Queries, planner: Planner) -> APIRouter:
    router = APIRouter(tags=["knowledge"])

    @router.post("/what-if")
    def what_if(sight: Seeing, asked: WhatIfIn) -> WhatIfOut:
        """The best division of a cluster that the question describes; nothing is carried out."""
        return WhatIfOut(answer=planner.ask(asked.question, asked.next))

    @router.get("/plan/failover")
    def failover(sight: Seeing) -> FailoverOut:
        """What would be done after each single next event, from where the newest plan was made."""
        if not sight.jobs:
            raise Refused("plans name everybody's runs, which PrivateData keeps private here")
        found = queries.last_plan()
        if found is None:
            raise NotFound("no plan was made yet: one is when a run starts or a node fails")
        questions = json.loads(found.doc).get("questions", {})
        if "unlimited" not in questions:
            raise NotFound("the newest plan has no question that could be asked again")
        table = planner.table(found.at, questions["unlimited"])
        return FailoverOut(at=found.at, items=[FailoverEntryOut.model_validate(e) for e in table])

    return router


def main() -> None:
    from planner.answer import answer, next_answers  # slow to import
    from planner.question import parse

    asked = json.load(sys.stdin)
    try:
        question = parse(json.dumps(asked["question"]))
        told: Any = next_answers(question) if asked["next"] else answer(question)
    except BadInput as error:
        told = {"error": str(error)}
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
