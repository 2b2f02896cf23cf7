"""Who names whom: ranks and nodes that one reporter's text points at. Pure.

Only words that point at a culprit count. "A dump signal from rank 5" names whoever timed out
first, "connection closed by local rank 3" whoever aborted first; neither is a cause.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

NUMBERS = r"\[?(\d{1,6}(?:(?: ?, ?| |-)\d{1,6})*)\]?"
MISSING = tuple(
    re.compile(pattern)
    for pattern in (
        rf"ranks? {NUMBERS} failed to pass monitoredbarrier",
        rf"missing ranks?:? ?{NUMBERS}",
        rf"stalled ranks?:[^\n]*?\n?\s*{NUMBERS}:",
        rf"{NUMBERS} finished collective #?\d+, but didn.t join",
        rf"{NUMBERS} (?:has|have)(?: not|n.t) joined",
        rf"{NUMBERS} (?:didn.t|did not|never) join",
        rf"ranks? {NUMBERS} (?:is|are|was|were) (?:missing|absent|late|lagging|behind|stragg)",
        rf"waiting for ranks?:? {NUMBERS}",
        rf"not received (?:from|by) ranks? {NUMBERS}",
        rf"(?:affected|straggler|slow) ranks?:? {NUMBERS}",
        rf"stragglers? (?:detected|found)\b[: ]*ranks? {NUMBERS}",
    )
)
DIED = tuple(
    re.compile(pattern)
    for pattern in (
        r"root cause \(first observed failure\):[^=]{0,300}?rank +: (\d+)",
        r"srun: error: \S+: tasks? (\d+): (?:segmentation|aborted|killed|bus|out of memory)",
        r"(?:unhealthy|stopped sending heartbeats)[^\n]*task:(\d+)",
        r"task:(\d+) (?:is )?(?:unhealthy|heartbeat timeout|has been set to error)",
        r"rank (\d+) (?:has )?(?:died|crashed|exited|was killed|terminated|failed|is dead)",
        r"worker rank (\d+) (?:has )?(?:died|failed|exited)",
        r"exception on rank (\d+)",
        r"from rank (\d+), retcode",
    )
)
FAILED_NODES = tuple(
    re.compile(pattern)
    for pattern in (
        r"node failure on ([\w.-]+)",
        r"on failed node ([\w.-]+)",
        r"nodes? ([\w.-]+) not responding",
        r"missing from batch node ([\w.-]+)",
        r"nodes? ([\w.-]+) (?:is|are) (?:down|still not ready|not ready)",
        r"task launch for [\d.]+ failed on node ([\w.-]+)",
    )
)
LOST_PEERS = tuple(
    re.compile(pattern)
    for pattern in (
        r"closed by (?:remote )?peer \[?([\w.-]+)",
        r"(?:recv|send|connect|completion)\w* (?:to|from) (?:peer )?([\w.-]+)<",
        r"connect to ([\w.-]+)<",
        r"(?:read|write) error \[([\w.-]+)\]",
        r"trying to connect to \(([\w.-]+),",
    )
)
OWN_RANK = tuple(
    re.compile(pattern)
    for pattern in (
        r"\[rank ?(\d+)\]", r"proxy service (\d+)\]", r"\brank (\d+)\] ", r"\brank (\d+):",
        r"\bcomm 0x\w+ rank (\d+)",
    )
)  # fmt: skip
MOST = 4096  # ranks taken from one range: a damaged number must not fill the memory


@dataclass(frozen=True, slots=True)
class Mentions:
    missing: frozenset[int]  # did not come to a collective
    died: frozenset[int]
    failed_nodes: frozenset[str]
    lost_peers: frozenset[str]  # node names or addresses at the other end


def read(text: str) -> Mentions:
    lower = text.lower()
    return Mentions(
        missing=_ranks(MISSING, lower),
        died=_ranks(DIED, lower),
        failed_nodes=_names(FAILED_NODES, lower),
        lost_peers=_names(LOST_PEERS, lower),
    )


def own_rank(text: str) -> int | None:
    """The rank that a line says it comes from, where its reporter is not known."""
    lower = text.lower()
    for pattern in OWN_RANK:
        match = pattern.search(lower)
        if match:
            return int(match[1][:9])
    return None


def _ranks(patterns: tuple[re.Pattern[str], ...], lower: str) -> frozenset[int]:
    found: set[int] = set()
    for pattern in patterns:
        for match in pattern.finditer(lower):
            found.update(_numbers(match[1]))
    return frozenset(found)


def _numbers(words: str) -> list[int]:
    found: list[int] = []
    for part in re.split(r" ?, ?| ", words):
        first, _, last = part.partition("-")
        if first.isdigit():
            end = int(last) if last.isdigit() else int(first)
            found.extend(range(int(first), min(end, int(first) + MOST) + 1))
    return found[:MOST]


def _names(patterns: tuple[re.Pattern[str], ...], lower: str) -> frozenset[str]:
    return frozenset(
        match[1].rstrip(".") for pattern in patterns for match in pattern.finditer(lower)
    )


def same_host(name: str, node: str) -> bool:
    """Whether a name or an address belongs to a node.

    Without a map of addresses, an address is taken for the node whose number is its last part:
    that is how most clusters number, and only as a hint among others.
    """
    name, node = name.lower(), node.lower()
    if not node or name == node or name.split(".")[0] == node.split(".")[0]:
        return bool(node)
    last = re.fullmatch(r"\d+\.\d+\.\d+\.(\d+)", name)
    number = re.search(r"(\d+)$", node)
    return bool(last and number and int(last[1]) == int(number[1]))
