"""The folder in memory where ranks keep copies of their state (unicron/arena.py).

It outlives the ranks, and an agent that is killed and replaced. An agent that ends removes it; what
killed ones left behind for good is removed by the same user's next agent on the node.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from unicron.arena import VARIABLE
from unicrond.agent import claim

log = logging.getLogger(__name__)
MEMORY = Path("/dev/shm")


def folder_of(run_id: int, node: str, memory: Path = MEMORY) -> Path:
    return memory / f"unicron-{os.getuid()}-{run_id}-{node}"


def variables(run_id: int, node: str) -> dict[str, str]:
    """For the ranks, which make the folder when they need it."""
    return {VARIABLE: str(folder_of(run_id, node))}


def remove(run_id: int, node: str, memory: Path = MEMORY) -> None:
    shutil.rmtree(folder_of(run_id, node, memory), ignore_errors=True)


def sweep(run_id: int, node: str, memory: Path = MEMORY) -> None:
    """Of this user's other runs on this node, those that have no agent."""
    for other in _runs_with_copies(node, memory) - {run_id}:
        if not claim.is_held(other, node):
            log.info("removing copies that run %d left in memory", other)
            remove(other, node, memory)


def _runs_with_copies(node: str, memory: Path) -> set[int]:
    before, after = f"unicron-{os.getuid()}-", f"-{node}"
    names = (path.name for path in memory.glob(f"{before}*{after}"))
    middles = (name.removeprefix(before).removesuffix(after) for name in names)
    return {int(middle) for middle in middles if middle.isdecimal()}
