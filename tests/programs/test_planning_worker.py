"""The planner's own process, as unicrond starts it."""

from __future__ import annotations

import subprocess
from contextlib import closing
from pathlib import Path

from planningworld import NAMES, NOW, STARTED, a_run, lost

from db.codec import dumps, loads
from db.store import open_store
from unicrond.model.cluster import Node, NodeState, Snapshot
from unicrond.planning.client import worker_command
from unicrond.planning.words import Ask, Reply
from unicrond.ports import Changes


def test_the_workers_process_answers_and_ends_with_its_input(tmp_path: Path, url: str) -> None:
    config = tmp_path / "unicron.toml"
    config.write_text(f'database_url = "{url}"\n')
    nodes = {name: Node(name, NodeState.UP, "", 1, ("gpu",)) for name in NAMES}
    with closing(open_store(url)) as store:
        store.save(
            Changes(runs=(a_run(),), incidents=(lost("n2"),), snapshot=Snapshot(NOW, nodes, {}))
        )
    asked = dumps(Ask(NOW, (STARTED,))) + "\n"
    ended = subprocess.run(
        worker_command(config), input=asked, capture_output=True, text=True, timeout=60, check=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    reply = loads(Reply, ended.stdout)
    assert reply.plan is not None and reply.plan.choice == "shrink"
