"""What a checkpoint leaves to a thread while training goes on: one at a time, and waited for."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from unicron.errors import NoRoom

FINISH_SECONDS = 600.0  # for the part behind training's back, storage included


class Behind:
    """Of one process. What goes wrong is told there, each kind once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._said: set[str] = set()

    def start(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work, name=self._name)
        self._thread.start()

    def settle(self) -> None:
        """The newest copy counts, or never will; raises NoRoom."""
        if self._thread is not None:
            self._thread.join(FINISH_SECONDS)
            if self._thread.is_alive():
                raise NoRoom(f"the copy before is not finished after {FINISH_SECONDS:g} s")
            self._thread = None

    def say_once(self, text: str) -> None:
        kind = text.partition(": ")[2]
        if kind not in self._said:
            self._said.add(kind)
            print(f"unicron: {text}", file=sys.stderr)
