"""unicrond absent, killed, only watching, without Slurm or without disk: nobody is worse off."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from stage import EXAMPLE, LOCKSTEP, Stage, until

pytestmark = pytest.mark.slurm


def test_a_run_starts_without_unicrond_and_is_known_once_it_is_there(stage: Stage) -> None:
    stage.stop_unicrond()
    training = stage.submit(LOCKSTEP)
    training.until_step(10)
    stage.lab.start_unicrond()
    until("it is known", lambda: training.run().get("state") == "running")
    assert training.generations() == [1], "nothing was started anew for that"
    training.kill_rank(0)
    training.goes_on(generation=2)


def test_training_does_not_notice_a_restart_of_unicrond(stage: Stage) -> None:
    training = stage.submit(
        f"{EXAMPLE} --steps=100000 --step-seconds=0.2 --batch=3 --layers=1 --dim=16 --sequence=16"
        " --log=losses.jsonl",
    )
    lines = training.folder / "losses.jsonl"
    training.until("train steps", lambda: lines.exists() and lines.read_text().count("\n") > 10)
    until("it is known", lambda: training.run().get("state") == "running")
    pid = stage.unicrond_pid()
    killed = stage.lab.fault("kill-unicrond").wall_seconds
    until("unicrond is back", lambda: stage.unicrond_pid() not in (None, pid))
    until("its agents too", lambda: training.agent("n1")["last_heard"] > killed)
    time.sleep(3)
    steps = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    assert {step["generation"] for step in steps} == {1}
    during = [step["time"] for step in steps if step["time"] > killed - 1]
    assert max(later - earlier for earlier, later in pairwise(during)) < 2.5, "no pause"
    assert training.incidents() == []


def test_unicrond_killed_in_the_middle_of_a_heal_goes_on_with_it(stage: Stage) -> None:
    training = stage.training(LOCKSTEP, "--min-nodes=2")
    stage.lab.fault("cut-link", node="n3")
    training.until("the heal begins", lambda: training.run().get("healing") == "stop")
    stage.lab.fault("kill-unicrond")
    training.goes_on(generation=2)
    assert training.generations() == [1, 2]
    assert {s.node for s in training.of(2)} == {"n1", "n2"}
    assert training.heals()["state"] == "resolved"
    training.until("n3 is drained", lambda: stage.reason("n3").startswith("unicron: lost conn"))
    assert len(training.incidents()) == 1, "one fault, one incident"


def test_without_unicrond_the_agents_restart_a_broken_generation_once(stage: Stage) -> None:
    stage.agent_conf(unattended_timeout_seconds=5)
    training = stage.training()
    stage.stop_unicrond()
    training.kill_rank(1)
    training.goes_on(generation=2)
    assert {s.node for s in training.of(2)} == {"n1", "n2", "n3"}
    stage.lab.start_unicrond()
    until("unicrond takes it over", lambda: training.run().get("generation") == 2)
    until("and sees it run", lambda: training.run().get("state") == "running")
    assert all(i["state"] == "resolved" for i in training.incidents())
    training.kill_rank(2)
    training.goes_on(generation=3)
    assert training.run()["restarts"] == 0


def test_without_unicrond_a_run_that_lost_a_node_is_requeued_by_its_agents(stage: Stage) -> None:
    """As plain Slurm does with a job that has no --no-kill: once it gave the node up."""
    stage.agent_conf(unattended_timeout_seconds=5)
    training = stage.training()
    stage.stop_unicrond()
    stage.lab.fault("cut-link", node="n3")
    training.until("it waits in the queue", lambda: training.state() == "PENDING", 120)
    assert training.slurm("Restarts") == "1"
    stage.scontrol("update", f"JobId={training.job}", "StartTime=now")  # else after 120 s
    training.goes_on(generation=1001)
    assert "n3" not in {s.node for s in training.of(1001)}
    assert min(s.step for s in training.of(1001)) > 5, "from the checkpoint"
    assert training.slurm("Restarts") == "1"


def test_a_unicrond_that_only_observes_decides_and_orders_nothing(stage: Stage) -> None:
    stage.agent_conf(unattended_timeout_seconds=8)
    stage.set_mode("observe")
    training = stage.training()
    killed = time.time()
    training.kill_rank(1)
    training.until("a decision", lambda: "not carried out: mode observe" in training.story())
    training.goes_on(generation=2)  # by the agents themselves
    assert min(s.time for s in training.of(2)) > killed + 7
    assert training.kinds() == set()
    assert training.heals()["state"] == "resolved"
    assert "healed without unicrond" in training.story()


def test_slurmctld_down_for_a_while_delays_the_drain_and_not_the_heal(stage: Stage) -> None:
    training = stage.training(LOCKSTEP, "--min-nodes=2")
    stage.lab.fault("stop-slurmctld")
    stage.lab.fault("cut-link", node="n2")
    healed = training.goes_on(generation=2)
    assert {s.node for s in training.of(2)} == {"n1", "n3"}
    time.sleep(30)  # longer than agents go on where nobody answers them
    assert "waits for Slurm" in training.story()
    training.until_step(healed.step + 50)
    assert training.generations() == [1, 2]
    stage.lab.fault("start-slurmctld")
    training.until("n2 is drained", lambda: stage.reason("n2").startswith("unicron: lost conn"))
    training.until("the job is shrunk", lambda: training.nodes() == ["n1", "n3"])
    training.goes_on()
    assert training.generations() == [1, 2]


# What SQLite's write-ahead log held once it writes over without asking for more room.
TRUNCATE = """import sqlite3
sqlite3.connect("/var/lib/unicron/unicron.db").execute("PRAGMA wal_checkpoint(TRUNCATE)")
"""


@pytest.fixture
def small_disk(stage: Stage) -> Iterator[str]:
    """The store on a small disk of its own; gives the name of a file that fills it."""
    folder = "/var/lib/unicron"
    stage.stop_unicrond()
    stage.lab.exec(["mount", "-t", "tmpfs", "-o", "size=64m,mode=755,uid=60914", "tmpfs", "/mnt"])
    stage.lab.exec(["sh", "-c", f"cp -a {folder}/. /mnt && mount --move /mnt {folder}"])
    stage.lab.exec(["python3", "-c", TRUNCATE], user="unicron")
    stage.lab.start_unicrond()
    until("unicrond answers", lambda: stage.health().get("ok"))
    yield f"{folder}/filler"
    stage.stop_unicrond()
    stage.lab.exec(["umount", folder])
    stage.lab.start_unicrond()


def test_a_full_disk_of_the_store_loses_nothing_and_nothing_is_done_meanwhile(
    stage: Stage, small_disk: str
) -> None:
    training = stage.training()
    log = stage.lab.paths.inside("/var/log/unicron/unicrond.log")
    stage.lab.exec(["sh", "-c", f"cat /dev/zero >{small_disk}"], check=False)
    until("the store is full", lambda: stage.health().get("ok") is False)
    before, pid = training.newest(), stage.unicrond_pid()
    training.kill_rank(1)
    until("it says so", lambda: "store does not answer" in log.read_text()[-5000:])
    time.sleep(10)
    assert training.newest().generation == before.generation == 1, "nothing that is not saved"
    assert stage.unicrond_pid() == pid
    stage.lab.exec(["rm", small_disk])
    training.goes_on(generation=2)
    healed = training.heals()
    assert (healed["state"], healed["root_rank"]) == ("resolved", 1)
    assert training.generations() == [1, 2]
    assert "store answers again" in log.read_text()
