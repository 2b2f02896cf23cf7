"""On which nodes a node's copies are kept too. Pure; each agent computes it alone.

Nodes are laid out switch by switch, the largest first, and each one's copies go as many places on
as the largest switch has nodes. So every node keeps those of exactly as many others as it has kept
itself, and on another switch wherever no switch has more than half of the nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence


def keepers(node: str, nodes: Sequence[str], switches: Mapping[str, str], count: int) -> list[str]:
    """`count` of `nodes`, or all others if there are fewer; nearest choice first. Nodes without an
    entry in `switches` count as on one of their own together."""
    if node not in nodes:
        return []
    sizes = Counter(switches.get(one, "") for one in nodes)
    laid_out = sorted(nodes, key=lambda one: _place(one, sizes, switches))
    at, around = laid_out.index(node), len(laid_out)
    first = max(sizes.values())
    shifts = [shift for n in range(around) if (shift := (first + n) % around)]
    return [laid_out[(at + shift) % around] for shift in shifts[:count]]


def _place(
    node: str, sizes: Mapping[str, int], switches: Mapping[str, str]
) -> tuple[int, str, str]:
    switch = switches.get(node, "")
    return -sizes[switch], switch, node
