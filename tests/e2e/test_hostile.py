"""Users who lie, forge and shout: nothing of others is touched, and no node is drained for it."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
from stage import LOCKSTEP, Stage, Training, until

from unicrond.slurm.cli import CommandLineSlurm
from unicrond.slurm.watch import SystemClock

pytestmark = pytest.mark.slurm

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus."


def impostor(stage: Stage, user: str, run: int, node: str, *how: str) -> str:
    program = ["python3", "/opt/unicron/e2e/impostor.py", str(run), node, *how]
    env = {"PYTHONPATH": "/opt/unicron/lib"}
    return stage.lab.exec(program, user=user, node="n6", env=env).stdout.strip()


def test_nobody_speaks_for_a_job_of_somebody_else(stage: Stage) -> None:
    training = stage.training()
    assert impostor(stage, "bob", training.job, "n2") == f"refused: job {training.job} is not yours"
    assert "refused" in impostor(stage, "alice", training.job, "n6"), "not a node of the job"
    assert "has an agent already" in impostor(stage, "alice", training.job, "n2")
    assert "refused" in impostor(stage, "alice", 0, "n6"), "a sensor's word is root's"
    assert "Invalid credential" in impostor(stage, "alice", training.job, "n2", "forged")
    assert "was used before" in impostor(stage, "alice", training.job, "n2", "replayed")
    training.goes_on()
    assert training.generations() == [1]
    assert training.incidents() == []
    assert all(agent["connected"] for agent in training.run()["agents"])


def memory_kilobytes(pid: int | None) -> int:
    with open(f"/proc/{pid}/status") as status:  # noqa: PTH123
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def test_noise_and_floods_on_the_agents_port_leave_unicrond_at_work(stage: Stage) -> None:
    training = stage.training()
    pid = stage.unicrond_pid()
    before = memory_kilobytes(pid)
    noise = stage.lab.exec(["python3", "/opt/unicron/e2e/nuisance.py"], user="bob", node="n5")
    taken = dict(line.rsplit(": ", 1) for line in noise.stdout.splitlines())
    assert len(taken) == 10
    assert all(int(n) < 32 << 20 for n in taken.values()), f"cut off early: {taken}"
    training.kill_rank(1)
    training.goes_on(generation=2)
    assert stage.unicrond_pid() == pid
    assert memory_kilobytes(pid) < before + 50_000
    until("nothing is left half open", lambda: stage.health()["agents_connected"] == 3)
    assert {s.node for s in training.of(2)} == {"n1", "n2", "n3"}


def cries_wolf(stage: Stage) -> Training:
    """A rank that dies with a broken GPU's words on its lips."""
    program = f"{LOCKSTEP} --end 1 10 1 --last-words '{XID}'"
    training = stage.submit(program, "--min-nodes=2")
    training.goes_on(generation=2)
    return training


def test_a_user_who_claims_broken_hardware_moves_his_own_run_and_drains_nothing(
    stage: Stage,
) -> None:
    for _ in range(2):  # nor does saying it twice
        training = cries_wolf(stage)
        assert {s.node for s in training.of(2)} == {"n1", "n3"}
        assert training.run()["shunned"] == ["n2"]
        assert "drain" not in training.kinds()
        assert stage.reasons() == {}
        stage.cancel_all()


def test_an_agent_that_lies_harms_its_own_run_alone(stage: Stage) -> None:
    """It is the user's process: he stops the real one and speaks in its place."""
    victim = stage.training(nodes=2, user="bob")
    liars = stage.training(LOCKSTEP, "--min-nodes=2")
    node = liars.nodes()[1]
    real = next(p for p in stage.inside(node) if stage.is_agent(p))
    os.kill(real.pid, signal.SIGSTOP)
    time.sleep(4)  # then it counts as mute
    said = impostor(stage, "alice", liars.job, node, "liar", ",".join(liars.nodes()))
    assert said == "heard"
    liars.until("its run suffers", liars.incidents)
    os.kill(real.pid, signal.SIGCONT)
    victim.until_step(victim.newest().step + 100)
    assert victim.generations() == [1]
    assert victim.incidents() == []
    assert "drain" not in liars.kinds()
    assert stage.reasons() == {}
    assert stage.health()["ok"]


def jobs(stage: Stage) -> dict[int, dict[str, Any]]:
    return {item["job_id"]: item for item in stage.api("allocations")["items"]}


def test_records_that_a_users_comment_forges_are_no_jobs_and_hide_none(stage: Stage) -> None:
    """`scontrol show job` prints his line breaks as they are: whole records, like any other."""
    victim = stage.training(nodes=2, user="alice")
    fields = "UserId=bob(1) JobState=RUNNING NodeList=n[1-2] BatchHost=n1 TRES=gres/gpu=4"
    forged = "\n".join(f"JobId={job} JobName=x {fields}" for job in (victim.job, 9999))
    comment = f"x StdErr=/a StdIn=/b StdOut=/c Power= \n{forged}"
    command = ["sbatch", "--parsable", "--output=/dev/null", "-N1", "--gpus-per-node=1"]
    command += [f"--job-name=a\nJobId={victim.job} JobName=b", f"--comment={comment}"]
    hostile = int(stage.lab.exec([*command, "--wrap", "sleep 600"], user="bob").stdout)

    until("it is shown", lambda: hostile in jobs(stage))
    troubles = (
        CommandLineSlurm(SystemClock(), stage.lab.command([], user="unicron")).snapshot().error
    )
    assert f"job {victim.job}: shown twice" in troubles
    assert "job 9999: no such job" in troubles
    shown = jobs(stage)
    assert 9999 not in shown
    assert shown[victim.job]["user"] == "alice"
    assert shown[victim.job]["state"] == "running"
    victim.kill_rank(1)
    victim.goes_on(generation=2)
    assert stage.health()["ok"], "a user's nonsense is no trouble of Slurm"
    assert stage.lab.exec(["scancel", str(hostile)], user="bob").returncode == 0
