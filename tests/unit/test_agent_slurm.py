"""What an agent reads from scontrol, here a script that prints what Slurm 22.05 does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from unicrond.agent import slurm
from unicrond.agent.slurm import Standing
from unicrond.errors import SlurmUnavailable

SCONTROL = """#!/bin/sh
case "$1 $2" in
"show job") cat {folder}/job ; grep -q JobId {folder}/job ;;
"show hostnames") case $3 in "n[1-3]") printf 'n1\\nn2\\nn3\\n' ;; *) echo "$3" ;; esac ;;
"requeue 7") echo requeued >>{folder}/requeued ;;
*) exit 1 ;;
esac
"""
JOB = (
    "JobId=7 JobName=a JobState={state} Requeue=1 Restarts={restarts} BatchFlag=1"
    " ReqNodeList=(null) ExcNodeList=(null) NodeList={nodes} BatchHost=n1 NumNodes=3"
)


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        scontrol = folder / "scontrol"
        scontrol.write_text(SCONTROL.format(folder=folder))
        scontrol.chmod(0o755)
        self.job()

    def job(self, state: str = "RUNNING", restarts: int = 0, nodes: str = "n[1-3]") -> None:
        self.says(JOB.format(state=state, restarts=restarts, nodes=nodes))

    def says(self, text: str) -> None:
        (self.folder / "job").write_text(text + "\n")

    def standing(self, node: str = "n2") -> Standing:
        return asyncio.run(slurm.standing(7, 0, node))

    def requeue(self, *lost: str) -> bool:
        asyncio.run(slurm.requeue(7, 0, "n2", lost))
        return (self.folder / "requeued").exists()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Site(tmp_path)


def test_a_node_is_held_taken_or_its_job_is_over(site: Site) -> None:
    assert site.standing() is Standing.HELD
    assert site.standing("n4") is Standing.TAKEN
    for state in ("COMPLETED", "COMPLETING", "CANCELLED", "FAILED"):
        site.job(state)
        assert site.standing() is Standing.OVER
    site.job("PENDING", nodes="")
    assert site.standing() is Standing.OVER
    site.job(restarts=1)
    assert site.standing() is Standing.OVER
    site.says("slurm_load_jobs error: Invalid job id specified")
    assert site.standing() is Standing.OVER


def test_an_answer_that_is_none_decides_nothing(site: Site) -> None:
    for text in ("", "slurm_load_jobs error: Unable to contact slurm controller"):
        site.says(text)
        with pytest.raises(SlurmUnavailable):
            site.standing()
        with pytest.raises(SlurmUnavailable):
            site.requeue()


def test_a_job_is_requeued_by_a_node_that_it_still_has(site: Site) -> None:
    site.job(nodes="n4")
    assert not site.requeue()
    site.job("COMPLETING")
    assert not site.requeue()
    site.job()
    assert site.requeue()


def test_a_requeue_waits_until_slurm_took_the_lost_nodes(site: Site) -> None:
    with pytest.raises(SlurmUnavailable, match="has not given up n3 yet"):
        site.requeue("n3")
    assert site.requeue("n4")
