"""Verdicts on their way into AdminComments: the newest of each run, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from unicrond import verdicts
from unicrond.errors import Refused, SlurmUnavailable
from unicrond.model.decision import Decision
from unicrond.verdicts import Verdicts


def decision(run_id: int | None, reason: str, acts: bool = True) -> Decision:
    return Decision(0.0, 1, run_id, 1, "restart", reason, acts)


def written(
    decided: Sequence[Decision], errors: Sequence[Exception] = (), seconds: float = 0.05
) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    trouble = list(errors)

    async def tell(run_id: int, verdict: str) -> None:
        found.append((run_id, verdict))
        if trouble:
            raise trouble.pop(0)

    async def play() -> None:
        waiting = Verdicts(tell)
        for one in decided:
            waiting.take(one)
        task = asyncio.create_task(waiting.run())
        await asyncio.sleep(seconds)
        task.cancel()

    asyncio.run(play())
    return found


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(verdicts, "AWAY_SECONDS", 0.0)


def test_of_a_run_the_newest_is_written_once() -> None:
    decided = [decision(1, "a"), decision(2, "b"), decision(1, "c"), decision(None, "d")]
    assert written(decided) == [(2, "b"), (1, "c")]


def test_who_only_observes_writes_nothing() -> None:
    assert written([decision(1, "a", acts=False)]) == []


def test_what_slurm_refuses_is_not_tried_again_and_what_it_did_not_hear_is() -> None:
    decided = [decision(1, "a"), decision(2, "b")]
    errors = [Refused("foreign words"), SlurmUnavailable("no answer")]
    assert written(decided, errors) == [(1, "a"), (2, "b"), (2, "b")]


def test_they_go_out_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "PAUSE_SECONDS", 60.0)
    assert written([decision(run, "a") for run in range(100)]) == [(0, "a")]


def test_so_many_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "MOST_WAITING", 2)
    assert written([decision(run, "a") for run in range(5)]) == [(3, "a"), (4, "a")]
