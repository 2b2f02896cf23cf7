"""Snapshots as JSON lines, each telling only what changed since the line before. Pure.

    {"at": 1.5, "pause": 2.0, "error": "", "nodes": {"set": [...], "gone": [...]},
     "allocations": null}

null means unknown, and the next line that knows tells everything again. A record is the list of its
fields in the order of the dataclass: both ends are the same version of this file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, TypeVar

from unicrond.model.cluster import Allocation, JobState, Node, NodeState, Snapshot

K = TypeVar("K")
V = TypeVar("V")
NODE_FIELDS = tuple(field.name for field in fields(Node))
ALLOCATION_FIELDS = tuple(field.name for field in fields(Allocation))
_node_values = attrgetter(*NODE_FIELDS)
_allocation_values = attrgetter(*ALLOCATION_FIELDS)


@dataclass(frozen=True, slots=True)
class Look:
    """A snapshot, and how long the watcher means to wait before the next."""

    snapshot: Snapshot
    pause_seconds: float


class Encoder:
    """Remembers the last snapshot, to tell differences."""

    def __init__(self) -> None:
        self._last: Snapshot = _NOTHING

    def encode(self, look: Look) -> str:
        """One line without its end."""
        new, old = look.snapshot, self._last
        self._last = new
        return json.dumps(
            {
                "at": new.at,
                "pause": look.pause_seconds,
                "error": new.error,
                "nodes": _difference(old.nodes, new.nodes, _node_values),
                "allocations": _difference(old.allocations, new.allocations, _allocation_values),
            },
            separators=(",", ":"),
        )


class Decoder:
    """Puts the differences together again."""

    def __init__(self) -> None:
        self._last: Snapshot = _NOTHING

    def decode(self, line: str | bytes) -> Look:
        """Raises ValueError for a line that Encoder did not write."""
        try:
            told = json.loads(line)
            self._last = Snapshot(
                at=float(told["at"]),
                nodes=_applied(self._last.nodes, told["nodes"], _node),
                allocations=_applied(self._last.allocations, told["allocations"], _allocation),
                error=str(told["error"]),
            )
            return Look(self._last, float(told["pause"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a snapshot: {error!r}") from error


_NOTHING = Snapshot(0.0, None, None)


def _difference(
    old: Mapping[K, V] | None, new: Mapping[K, V] | None, values: Callable[[V], object]
) -> dict[str, object] | None:
    if new is None:
        return None
    before = old or {}
    return {
        "set": [values(record) for key, record in new.items() if before.get(key) != record],
        "gone": [key for key in before if key not in new],
    }


def _applied(
    old: Mapping[K, V] | None, told: Any, record: Callable[[list[Any]], tuple[K, V]]
) -> Mapping[K, V] | None:
    if told is None:
        return None
    merged = dict(old or {})
    for key in told["gone"]:
        del merged[key]
    merged.update(map(record, told["set"]))
    return merged


def _node(values: list[Any]) -> tuple[str, Node]:
    told = dict(zip(NODE_FIELDS, values, strict=True))
    told["state"] = NodeState(told["state"])
    told["partitions"] = tuple(told["partitions"])
    return told["name"], Node(**told)


def _allocation(values: list[Any]) -> tuple[int, Allocation]:
    told = dict(zip(ALLOCATION_FIELDS, values, strict=True))
    told["state"] = JobState(told["state"])
    told["nodes"] = tuple(told["nodes"])
    return told["job_id"], Allocation(**told)
