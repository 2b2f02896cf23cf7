"""Where ranks keep copies of their state, and when these go."""

from __future__ import annotations

import os
from pathlib import Path

from unicrond.agent import copies
from unicrond.agent.claim import Claim


def test_ranks_are_told_a_folder_of_their_run_and_node() -> None:
    told = copies.variables(7, "n1")
    assert told == {"UNICRON_ARENA": f"/dev/shm/unicron-{os.getuid()}-7-n1"}


def test_what_killed_agents_left_is_removed_and_what_lives_is_not(tmp_path: Path) -> None:
    node = f"n-{os.getpid()}"
    for run_id in (7, 8, 9):
        (copies.folder_of(run_id, node, tmp_path) / "deeper").mkdir(parents=True)
    others = [tmp_path / f"unicron-{os.getuid()}-7-x{node}", tmp_path / f"unicron-0{node}"]
    for other in others:
        other.mkdir()
    alive = Claim(8, node, "a")
    assert alive.take() == ""
    copies.sweep(9, node, tmp_path)
    alive.close()
    left = set(tmp_path.iterdir())
    assert left == {
        copies.folder_of(8, node, tmp_path),
        copies.folder_of(9, node, tmp_path),
        *others,
    }
