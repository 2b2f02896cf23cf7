"""Agents that die, stand still or meet another one; and nodes that only some can reach."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator

import pytest
from stage import LOCKSTEP, UNICRON_TOML, Stage, Training, until

pytestmark = pytest.mark.slurm


def agent_id(training: Training, node: str) -> str:
    """Of the agent that serves this node now: the last one that wrote its log."""
    lines = [x for x in training.agent_log(node).splitlines() if f" agent={node}-" in x]
    return lines[-1].split(" agent=")[1].split()[0]


def test_an_agent_that_is_killed_is_started_again_by_another(stage: Stage) -> None:
    training = stage.training(ranks_per_node=2)
    before = agent_id(training, "n2")
    stage.lab.fault("kill-agent", job=str(training.job), node="n2")
    training.goes_on(generation=2)
    assert {s.node for s in training.of(2)} == {"n1", "n2", "n3"}
    assert agent_id(training, "n2") != before
    ended = max(s.time for s in training.of(1) if s.node == "n2")
    assert ended < min(s.time for s in training.of(2)), "its ranks died with it"
    assert training.heals()["state"] == "resolved"
    assert "spawn_agent" in training.kinds()
    assert "drain" not in training.kinds()
    training.finish()
    training.ends("COMPLETED")  # though srun counts the killed agent as a failure
    assert stage.reasons() == {}


def test_all_agents_killed_at_once_are_started_again(stage: Stage) -> None:
    training = stage.training(nodes=2)
    stage.lab.fault("kill-agent", job=str(training.job))
    training.until("new steps", lambda: training.newest().generation > 1)
    training.goes_on()
    assert training.state() == "RUNNING"
    assert stage.reasons() == {}


def test_an_agent_that_stands_still_loses_its_ranks_and_the_run_goes_on(stage: Stage) -> None:
    """Its node answers, so it is neither drained nor taken away."""
    training = stage.training(f"{LOCKSTEP} --alone", "--min-nodes=2")
    agent = next(p for p in stage.inside("n3") if stage.is_agent(p))
    os.kill(agent.pid, signal.SIGSTOP)
    training.goes_on(generation=2)
    training.until("a new generation", lambda: training.generations() == [1, 2])
    assert {s.node for s in training.of(2)} == {"n1", "n2"}
    stuck = max(s.time for s in training.of(1) if s.node == "n3")
    assert stuck < min(s.time for s in training.of(2)), "nobody writes beside the new generation"
    os.kill(agent.pid, signal.SIGCONT)
    time.sleep(5)
    assert [s for s in training.of(1) if s.node == "n3"][-1].time == stuck
    training.goes_on()
    assert training.nodes() == ["n1", "n2", "n3"]
    assert not training.kinds() & {"drain", "shrink"}
    assert stage.reasons() == {}


def test_a_second_agent_on_a_node_leaves_and_training_does_not_notice(stage: Stage) -> None:
    training = stage.training()
    before = agent_id(training, "n2")
    second = [
        "srun", "--overlap", f"--jobid={training.job}", "-N1", "-n1", "-w", "n2",
        *("python3", "/opt/unicron/agent.pyz", "run", "--ranks-per-node=1", "--"),
        *LOCKSTEP.split(),
    ]  # fmt: skip
    agent = next(p for p in stage.inside("n2") if stage.is_agent(p))
    secret = stage.environment(agent)["UNICRON_SECRET"]
    done = stage.lab.exec(
        second, user="alice", env={"UNICRON_SECRET": secret}, folder="/home/alice"
    )
    assert f"{before} is this run's agent on n2 already: leaving" in done.stderr
    training.goes_on()
    assert training.generations() == [1]
    assert {(s.node, s.pid) for s in training.of(1) if s.node == "n2"} == {
        (s.node, s.pid) for s in training.of(1)[:12] if s.node == "n2"
    }
    assert training.incidents() == []


def test_a_node_that_only_unicrond_cannot_reach_trains_on_with_its_peers(stage: Stage) -> None:
    training = stage.training()
    stage.lab.fault("cut-management", node="n3")
    training.until("unicrond misses it", lambda: "unicrond does not hear n3" in training.story())
    cut = training.newest().step
    training.until_step(cut + 60)
    assert training.generations() == [1]
    assert training.incidents() == []
    mended = stage.lab.fault("restore-management", node="n3").wall_seconds
    training.until("it is back", lambda: training.agent("n3")["last_heard"] > mended)
    training.kill_rank(2)
    training.goes_on(generation=2)
    assert {s.node for s in training.of(2)} == {"n1", "n2", "n3"}
    assert stage.reasons() == {}


@pytest.fixture
def by_comment(stage: Stage) -> Iterator[Stage]:
    """As a site without MUNGE is set up: unicrond has a secret, agents know it by a key."""
    key, toml = "/var/lib/unicron/proof.key", stage.lab.paths.inside("/etc/unicron/unicron.toml")
    told = stage.lab.exec(["unicronctl", "proof-key", key], user="unicron").stdout
    stage.stop_unicrond()
    toml.write_text(f'proof_key = "{key}"\n{UNICRON_TOML}')
    stage.lab.start_unicrond()
    until("unicrond answers", lambda: stage.health().get("slurm") == "ok")
    stage.agent_conf(unicrond_key=told.split("unicrond_key = ")[1].strip())
    yield stage
    stage.cancel_all()
    stage.agent_conf()
    stage.stop_unicrond()
    toml.write_text(UNICRON_TOML)
    stage.lab.start_unicrond()


def test_without_munge_agents_are_believed_for_the_comment_of_their_job(by_comment: Stage) -> None:
    note = '--comment={"note": "mine"}'
    training = by_comment.training(options=(note,))
    comment = json.loads(training.slurm("Comment"))
    assert (comment["note"], len(comment["unicron_proof"])) == ("mine", 64)
    training.kill_rank(1)
    training.goes_on(generation=2)
    assert training.heals()["state"] == "resolved"
    by_comment.stop_unicrond()
    by_comment.lab.start_unicrond()
    training.until("its agents are back", lambda: training.agent("n2").get("connected"))


def test_an_agent_whose_proof_is_not_in_the_comment_is_told_so(by_comment: Stage) -> None:
    training = by_comment.submit(LOCKSTEP, options=("--comment=words",), nodes=1)
    training.until_step(3)
    assert "holds other words" in training.output()
    training.until(
        "its agent hears why", lambda: "does not hold this run's proof" in training.agent_log("n1")
    )
    assert training.run().get("state") != "running"
