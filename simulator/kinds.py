"""Kinds of failures: how each is noticed, and how bad it is.

The table is Unicron's (arXiv 2401.00134) as others quote it; which method notices which kind is
recalled from it and unconfirmed. `share` is the part of all training runs that end this way, in
per cent; 0 where no number was published, so such a kind is drawn only if a scenario gives it one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Method(StrEnum):
    """How a failure is noticed; each policy has its own time for each."""

    NODE = "node"  # the node falls silent
    PROCESS = "process"  # a process ended
    EXCEPTION = "exception"  # a process says what went wrong
    HANG = "hang"  # iterations stop, or become slow


@dataclass(frozen=True, slots=True)
class Kind:
    """`severity` 1: the node is out of service; 2: the processes restart; 3: tried again."""

    method: Method
    severity: int
    share: float = 0.0


SWITCH = "switch lost"

KINDS: Mapping[str, Kind] = {
    "lost connection": Kind(Method.NODE, 1),
    SWITCH: Kind(Method.NODE, 1),
    "ECC error": Kind(Method.EXCEPTION, 1, 5.0),
    "invalid DMA mapping": Kind(Method.EXCEPTION, 1, 2.1),
    "NVLink error": Kind(Method.EXCEPTION, 1, 4.5),
    "GPU driver error": Kind(Method.EXCEPTION, 1, 0.6),
    "exited abnormally": Kind(Method.PROCESS, 2),
    "illegal memory access": Kind(Method.EXCEPTION, 2, 2.1),
    "CUDA error": Kind(Method.EXCEPTION, 2, 1.6),
    "task hang": Kind(Method.HANG, 2, 3.1),
    "other software error": Kind(Method.EXCEPTION, 2),
    "connection refused": Kind(Method.EXCEPTION, 3, 2.1),
    "connection reset": Kind(Method.EXCEPTION, 3, 1.0),
    "other network error": Kind(Method.EXCEPTION, 3, 4.0),
    "collective timeout": Kind(Method.HANG, 3, 10.1),
    "link flapping": Kind(Method.HANG, 3, 3.9),
}
SHARES: Mapping[str, float] = {name: kind.share for name, kind in KINDS.items() if kind.share}
