"""When nodes go into maintenance: text of `scontrol show reservation`, pure, and when to read it.

    ReservationName=fix StartTime=2026-11-30T22:38:35 EndTime=... Nodes=n[3-4] ... Flags=MAINT,...

Only reservations with the flag MAINT count: all others Slurm keeps clear of running jobs, or lets
these run on. Read once a minute; what was read last stays until it is read again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone

from unicrond.errors import Refused, SlurmUnavailable
from unicrond.model.cluster import Node
from unicrond.slurm.hostlist import BadHostlist, expand

AGAIN_SECONDS = 60.0

_WINDOW = re.compile(
    r"^ReservationName=\S+ StartTime=(\S+) .*?\bNodes=(\S+) .*?\bFlags=(\S+)", re.MULTILINE
)

Windows = Mapping[str, float]


def parse_windows(text: str) -> tuple[Windows, str]:
    """Unix seconds of the next window by node, and what of it makes no sense."""
    found, trouble = dict[str, float](), ""
    for start, nodes, flags in _WINDOW.findall(text):
        if "MAINT" not in flags.split(","):
            continue
        try:
            at = datetime.fromisoformat(start).replace(tzinfo=timezone.utc).timestamp()
            for node in expand(nodes):
                found[node] = min(at, found.get(node, at))
        except (BadHostlist, ValueError) as error:
            trouble = f"a maintenance reservation: {error}"
    return found, trouble


class Maintenance:
    """`show` asks Slurm."""

    def __init__(self, show: Callable[[], str]) -> None:
        self._show = show
        self._windows: Windows = {}
        self._due = 0.0
        self._trouble = ""

    def announced(self, nodes: Mapping[str, Node], at: float) -> tuple[Mapping[str, Node], str]:
        """The nodes with their windows, and why these could not be read."""
        if at >= self._due:
            self._due = at + AGAIN_SECONDS
            try:
                self._windows, self._trouble = parse_windows(self._show())
            except (Refused, SlurmUnavailable) as error:
                self._trouble = f"maintenance windows are not known: {error}"
        told = {n: w for n, w in self._windows.items() if n in nodes}
        marked = {n: replace(nodes[n], away_at=window) for n, window in told.items()}
        return ({**nodes, **marked} if marked else nodes), self._trouble
