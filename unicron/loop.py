"""The strict loop as a script sees it: unicron/strict.py with a run's group, heartbeats, copies."""

from __future__ import annotations

import time
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import unicron
from unicron.errors import UnicronError
from unicron.strict import Strict
from unicron.together import Together

COPY_SECONDS = 10.0  # between copies in memory, as long as another member holds the same


class Loop:
    def __init__(
        self,
        run: unicron.Run,
        state: MutableMapping[str, Any],
        count: int,
        folder: str | Path | None,
        keeps: bool,
    ) -> None:
        self._run, self._state, self._folder = run, state, folder
        self._strict = Strict(Together(run), state, count, self._found, keeps)
        self._copied_at = time.monotonic()
        self.micro_batches, self.reduce = self._strict.micro_batches, self._strict.reduce

    def steps(self, last: int) -> Iterator[int]:
        """Here it is this loop that notices the end of a generation, not a heartbeat."""
        unicron.before_next_step = None
        return self._strict.steps(last)

    def _found(self) -> int:
        return unicron.restore(self._state, self._folder) or 0

    def commit(self, loss: float | None, to_disk: bool) -> None:
        if to_disk and self._folder is None:
            raise UnicronError("commit(to_disk=True): give steps() a folder")
        step = self._strict.commit()
        now = time.monotonic()
        if to_disk or self._run.world_size == 1 or now > self._copied_at + COPY_SECONDS:
            self._copied_at = now
            unicron.checkpoint(self._state, step, self._folder if to_disk else None)
        unicron.heartbeat(step, loss)
