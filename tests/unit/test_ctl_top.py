"""`unicronctl top` on a terminal of its own, over answers that are given here."""

from __future__ import annotations

import asyncio
from typing import Any

from textual.widgets import DataTable, Static

from unicrond.config import Settings
from unicrond.ctl.client import Client
from unicrond.ctl.top import Story, Top
from unicrond.errors import Unavailable

HEALTH = {
    "cluster": "alpha", "mode": "active", "loop": "alive", "loop_age_seconds": 1.0, "slurm": "ok",
    "snapshot_age_seconds": 1.0, "database": "ok", "agents_connected": 2,
}  # fmt: skip
RUN = {
    "run_id": 4711, "name": "llama", "user": "alice", "state": "running", "healing": None,
    "generation": 3, "iteration": 12, "ranks": [1, 2], "running_on": ["n1", "n2"],
}  # fmt: skip
WHY = {
    "subject": "run 4711", "summary": "running",
    "lines": [{"at": 1.7e9, "kind": "signal", "text": "n2 is [b]silent", "node": "n2",
               "decision": None}],
}  # fmt: skip


class Answering(Client):
    def __init__(self) -> None:
        super().__init__(Settings())
        self.silent = False

    def get(self, path: str, **parameters: object) -> dict[str, Any]:
        if self.silent:
            raise Unavailable("unicrond's API does not answer")
        return HEALTH if path == "/health" else WHY

    def items(self, path: str, **parameters: object) -> list[dict[str, Any]]:
        return [RUN] if path == "/runs" else []


def words(app: Top, name: str) -> str:
    return str(app.screen.query_one(f"#{name}", Static).render())


def test_runs_are_watched_their_story_is_told_and_silence_is_said() -> None:
    client = Answering()

    async def play() -> None:
        app = Top(client, 60.0)
        async with app.run_test() as pilot:
            await app.workers.wait_for_complete()
            await pilot.pause()
            runs = app.query_one("#runs", DataTable)
            assert [str(cell) for cell in runs.get_row("4711")][:3] == ["4711", "llama", "alice"]
            assert "alive" in words(app, "summary")
            runs.focus()
            await pilot.press("enter")
            assert isinstance(app.screen, Story)
            await app.workers.wait_for_complete()
            await pilot.pause()
            assert "n2 is [b]silent" in words(app, "story")
            await pilot.press("r")  # what is behind the story is asked for too
            await app.workers.wait_for_complete()
            await pilot.press("escape")
            client.silent = True
            await pilot.press("r")
            await app.workers.wait_for_complete()
            await pilot.pause()
            assert words(app, "summary") == "unicrond's API does not answer"

    asyncio.run(play())
