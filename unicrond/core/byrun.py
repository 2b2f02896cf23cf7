"""A dict whose values can also be asked for by run: of thousands that wait, few are of one run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")
Key = int | None  # a run's number; None: of no run


class ByRun(dict[K, V]):
    """Changed by `[]=` and `pop` alone. What is there keeps its run when its value changes."""

    def __init__(self, run_of: Callable[[V], Key], items: Iterable[tuple[K, V]] = ()) -> None:
        super().__init__()
        self._run_of = run_of
        self._of: dict[Key, dict[K, None]] = {}
        for key, value in items:
            self[key] = value

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self._of.setdefault(self._run_of(value), {})[key] = None

    def pop(self, key: K, default: V | None = None) -> V | None:  # type: ignore[override]
        if key not in self:
            return default
        value = super().pop(key)
        run_id = self._run_of(value)
        mine = self._of[run_id]
        del mine[key]
        if not mine:
            del self._of[run_id]
        return value

    def of_run(self, run_id: Key) -> tuple[V, ...]:
        """In the order in which they came."""
        return tuple(self[key] for key in self._of.get(run_id, ()))
