"""Which switch each node hangs on: text of `scontrol show topology`, pure, and when to read it.

    SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[01-16]     topology/tree: level 0 are those of nodes
    BlockName=b1 BlockIndex=0 Nodes=n[01-18]             topology/block: counts as a switch
    (nothing)                                            none configured: all on one switch, unnamed

Slurm 22.05 to 26.05. Nodes that no record names, or whose records cannot be read, have no switch
told: unknown. It changes when the site's network does, so it is read once an hour.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from unicrond.errors import Refused, SlurmUnavailable
from unicrond.model.cluster import Node
from unicrond.slurm.hostlist import BadHostlist, expand

AGAIN_SECONDS = 3600.0
AGAIN_AFTER_TROUBLE_SECONDS = 300.0

_LEAF = re.compile(
    r"^(?:SwitchName=(\S+) Level=0 .*?|BlockName=(\S+) .*?)\bNodes=(\S+)", re.MULTILINE
)

Switches = Mapping[str, str]


def parse_topology(text: str) -> tuple[Switches, str]:
    """Switch by node, of several the first; and what of it makes no sense."""
    found, trouble = dict[str, str](), ""
    for switch, block, nodes in _LEAF.findall(text):
        try:
            for node in expand(nodes):
                found.setdefault(node, switch or block)
        except BadHostlist as error:  # old versions cut long lines off
            trouble = f"switch {switch or block}: {error}"
    return found, trouble


class Topology:
    """`show` asks Slurm. What was read last stays until it is read again."""

    def __init__(self, show: Callable[[], str]) -> None:
        self._show = show
        self._switches: Switches = {}
        self._due = 0.0
        self._trouble = ""

    def placed(self, nodes: Mapping[str, Node], at: float) -> tuple[Mapping[str, Node], str]:
        """The nodes with their switches, and why these could not be read."""
        if at >= self._due:
            self._read(at)
        if not self._switches:
            return nodes, self._trouble
        of = self._switches
        placed = {n: replace(node, switch=of.get(n, "")) for n, node in nodes.items()}
        return placed, self._trouble

    def _read(self, at: float) -> None:
        try:
            self._switches, self._trouble = parse_topology(self._show())
            self._due = at + AGAIN_SECONDS
        except (Refused, SlurmUnavailable) as error:
            self._trouble = f"switches of nodes are not known: {error}"
            self._due = at + AGAIN_AFTER_TROUBLE_SECONDS
