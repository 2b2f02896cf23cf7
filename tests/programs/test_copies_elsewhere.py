"""Copies in memory and those who look after them: agents over their links, and the epilog."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from agentworld import Job

from unicrond.agent import copies

ROOT = Path(__file__).resolve().parents[2]
KEEPS = """
import os, time
from pathlib import Path
from unicron import arena, replicated
folder, rank = Path(os.environ["UNICRON_ARENA"]), os.environ["RANK"]
arena.make_private(folder)
slot = arena.Slot(folder / f"set-{1:020d}" / f"part-{rank}.0")
slot.finish(slot.begin(7, b"{}", 1000))
deadline = time.monotonic() + 30
while replicated.read(folder).safe.get(rank) != [7] and time.monotonic() < deadline:
    time.sleep(0.05)
time.sleep(1.0)  # for the other node's to come
print(sorted(path.name for path in slot.path.parent.iterdir()))
"""


def test_agents_keep_each_others_copies_until_the_run_ends(tmp_path: Path) -> None:
    with Job(tmp_path, 2, [sys.executable, "-c", KEEPS]) as job:
        folders = [copies.folder_of(job.run_id, node) for node in job.nodes]
        assert job.exit_codes() == [0, 0]
        assert job.output(1, 0) == "['part-0.0', 'part-1.0@n2']\n"
        assert job.output(1, 1) == "['part-0.0@n1', 'part-1.0']\n"
        assert not any(folder.exists() for folder in folders)


def test_the_epilog_removes_what_its_job_kept_and_nothing_else(tmp_path: Path) -> None:
    job, uid = 4_000_000_000 + os.getpid(), os.getuid() or 65_534
    mine, other = (Path(f"/dev/shm/unicron-{uid}-{one}-n1") for one in (job, job + 1_000_000_000))
    for folder in (mine, other):
        folder.mkdir()
        (folder / "slot-0").write_text("")
        os.chown(folder, uid, -1)
    named = {"SLURM_JOB_ID": str(job), "SLURM_JOB_UID": str(uid), "SLURMD_NODENAME": "n1"}
    environment = {"PATH": os.environ["PATH"], "UNICRON_HOME": str(tmp_path), **named}
    try:
        subprocess.run([ROOT / "slurm_plugins/unicron-epilog"], env=environment, check=True)
        assert not mine.exists()
        assert (other / "slot-0").exists()
    finally:
        subprocess.run(["rm", "-rf", mine, other], check=True)
