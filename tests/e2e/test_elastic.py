"""Runs grow by companion jobs and shrink, on a real Slurm, on an operator's order."""

from __future__ import annotations

import re
import time

import pytest
from stage import GPUS, LOCKSTEP, Stage, Training, until

pytestmark = pytest.mark.slurm

GROWS_WITHIN_SECONDS = 10.0  # the goal is 6 with free nodes, on a quiet machine


def resize(training: Training, nodes: int) -> float:
    """When it was ordered."""
    ordered = time.time()
    words = ["unicronctl", "run", "resize", str(training.job), str(nodes), "--why", "a test"]
    training.stage.lab.exec(words)
    return ordered


def first_with(training: Training, world: int, after: float) -> float:
    """When ranks of so large a world first trained."""

    def come() -> float | None:
        return min((s.time for s in training.steps() if s.world == world and s.time > after),
                   default=None)  # fmt: skip

    found: float = training.until(f"{world} ranks", come)
    return found


def companion_of(training: Training) -> int:
    shown = training.stage.lab.exec(["squeue", "--noheader", "--format=%i %j"]).stdout
    found = re.search(rf"^(\d+) \S+\+{training.job}$", shown, re.MULTILINE)
    assert found, shown
    return int(found[1])


def is_over(stage: Stage, job: int) -> bool:
    return not stage.lab.exec(["squeue", "--noheader", f"--jobs={job}"], check=False).stdout.strip()


@pytest.fixture
def grown(stage: Stage) -> Training:
    training, took = grow(stage)
    print(f"order to grow -> training on four nodes: {took:.1f} s")
    assert took < GROWS_WITHIN_SECONDS, training.story()
    return training


def grow(stage: Stage) -> tuple[Training, float]:
    """A run of two nodes that has two more by now, and the seconds that it took."""
    training = stage.training(LOCKSTEP, "--min-nodes=1", "--max-nodes=4", nodes=2)
    ordered = resize(training, 4)
    return training, first_with(training, 4, ordered) - ordered


def test_a_run_grows_and_shrinks_and_its_base_stays_as_it_was(grown: Training) -> None:
    training, stage = grown, grown.stage
    assert training.nodes() == ["n1", "n2"]
    assert {s.node for s in training.steps() if s.world == 4} == {"n1", "n2", "n3", "n4"}
    companion = companion_of(training)
    shown = stage.scontrol("show", "job", "-o", str(companion))
    assert f'"companion_of": {training.job}' in shown
    assert "Requeue=0" in shown
    ordered = resize(training, 2)
    took = first_with(training, 2, ordered) - ordered
    print(f"order to shrink -> training on two nodes: {took:.1f} s")
    until("the companion is over", lambda: is_over(stage, companion))
    training.goes_on()
    wanted = re.compile(rf'AdminComment={{"unicron": {{"run": {training.job}, "verdict": "(.*)"')

    def told() -> bool:
        found = wanted.search(stage.scontrol("show", "job", str(training.job)))
        return found is not None and "asks for 2 nodes" in found[1]

    training.until("the job tells of it", told, 10)
    assert (training.state(), training.slurm("Restarts")) == ("RUNNING", "0")
    until("its nodes are free", lambda: stage.node_states()["n3"] == "IDLE")
    assert stage.reasons() == {}


def test_a_run_ends_with_its_companion(grown: Training) -> None:
    companion = companion_of(grown)
    grown.finish()
    grown.ends("COMPLETED")
    until("the companion is over", lambda: is_over(grown.stage, companion))
    until("unicrond says so", lambda: grown.run()["state"] == "completed")


def test_who_cancels_the_companion_has_its_nodes_back_and_the_run_goes_on(grown: Training) -> None:
    grown.stage.lab.exec(["scancel", str(companion_of(grown))], user="alice")
    first_with(grown, 2, time.time())
    grown.goes_on()
    assert grown.state() == "RUNNING"
    until("the nodes are free", lambda: grown.stage.node_states()["n4"] == "IDLE")
    assert grown.stage.reasons() == {}


def test_who_cancels_the_base_ends_both(grown: Training) -> None:
    companion = companion_of(grown)
    grown.stage.lab.exec(["scancel", str(grown.job)], user="alice")
    until("the companion is over", lambda: is_over(grown.stage, companion), 20)
    grown.ends("CANCELLED")


def test_a_companion_does_not_outlive_its_base_when_unicrond_is_away(stage: Stage) -> None:
    stage.agent_conf(unattended_timeout_seconds=5)
    training, _ = grow(stage)
    companion = companion_of(training)
    stage.stop_unicrond()
    stage.lab.exec(["scancel", str(training.job)], user="alice")
    until("the companion is over", lambda: is_over(stage, companion), 40)
    until("no process is left", lambda: not any(map(stage.processes_of_users, ("n3", "n4"))))
    log = (training.folder / f"unicron-{training.job}/agent-n3.log").read_text()
    assert "leaving" in log or "over" in log, log[-1000:]


def test_an_agent_that_dies_in_the_companion_is_started_again(grown: Training) -> None:
    before = grown.generations()[-1]
    grown.stage.lab.fault("kill-agent", node="n4")
    grown.goes_on(generation=before + 1)
    grown.until(
        "all four train", lambda: {s.world for s in grown.of(grown.generations()[-1])} == {4}
    )
    assert grown.slurm("Restarts") == "0"
    assert grown.stage.reasons() == {}


def test_a_node_of_the_companion_that_is_lost_leaves_the_run(grown: Training) -> None:
    grown.stage.lab.fault("cut-link", node="n4")
    first_with(grown, 3, time.time())
    grown.until("n4 is drained", lambda: "DRAIN" in grown.stage.node_states()["n4"])
    assert grown.state() == "RUNNING"


def test_a_companion_gives_way_to_a_job_that_waits_for_its_nodes(grown: Training) -> None:
    stage, companion = grown.stage, companion_of(grown)
    shown = stage.scontrol("show", "job", "-o", str(companion))
    assert re.search(r" Deadline=\d{4}-", shown), shown
    nice, others = (int(re.search(rf" {key}=(\d+)", shown)[1]) for key in ("Nice", "Priority"))
    assert nice > 1_000_000
    assert others < int(grown.slurm("Priority"))
    command = ["sbatch", "--parsable", "-N4", f"--gpus-per-node={GPUS}", "--wrap", "sleep 300"]
    submitted = time.time()
    other = stage.lab.exec(command, user="bob", folder="/home/bob").stdout.strip()
    state = ["squeue", "--noheader", f"--jobs={other}", "--format=%T"]
    grown.until("bob's job runs", lambda: stage.lab.exec(state).stdout.strip() == "RUNNING", 20)
    print(f"another job waits for a companion's nodes -> it runs: {time.time() - submitted:.1f} s")
    assert is_over(stage, companion)
    first_with(grown, 2, submitted)
    grown.goes_on()
    assert grown.state() == "RUNNING"


def test_a_dry_run_says_what_would_be_done_and_does_nothing(stage: Stage) -> None:
    training = stage.training(LOCKSTEP, "--min-nodes=1", "--max-nodes=4", nodes=2)
    words = ["unicronctl", "run", "resize", str(training.job), "3", "--dry-run"]
    said = stage.lab.exec(words).stdout
    assert said.startswith(f"would grow run {training.job} of alice from 2 to 3 nodes")
    time.sleep(3)
    assert stage.squeue().count("\n") == 0
