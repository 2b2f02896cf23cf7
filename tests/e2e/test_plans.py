"""Plans are carried out on a real Slurm: idle nodes are lent, and come back in seconds."""

from __future__ import annotations

import time
from collections import defaultdict

import pytest
from stage import LOCKSTEP, NODES, Stage, Training, until
from test_elastic import first_with

pytestmark = pytest.mark.slurm

LENT_WITHIN_SECONDS = 60.0  # the planner's process may have to compile first
RECALLED_WITHIN_SECONDS = 30.0  # the goal is 8 on a quiet machine, and the node's loss 6 of lease


def no_node_was_in_two_runs(*trainings: Training) -> None:
    """Of each second in which a rank of one run wrote on a node, none of another did."""
    seen = defaultdict[tuple[str, int], set[int]](set)
    for training in trainings:
        for step in training.steps():
            seen[step.node, int(step.time * 2)].add(training.job)
    assert all(len(jobs) == 1 for jobs in seen.values())


def weigh(training: Training, weight: float) -> None:
    words = ["unicronctl", "run", "weight", str(training.job), str(weight), "--why", "a test"]
    training.stage.lab.exec(words)


@pytest.fixture
def lent(stage: Stage) -> tuple[Training, Training]:
    """A run that is worth much on three of six nodes, and one on two that the sixth is lent to."""
    rich = stage.training(LOCKSTEP, "--min-nodes=1", "--max-nodes=3", nodes=3)
    weigh(rich, 20)
    poor = stage.training(LOCKSTEP, "--min-nodes=1", "--max-nodes=4", nodes=2)
    allowed = time.time()
    stage.set_plans(True)
    poor.until("the idle node is lent", lambda: poor.newest().world == 3, LENT_WITHIN_SECONDS)
    print(f"plans are allowed -> the idle node trains: {first_with(poor, 3, 0) - allowed:.1f} s")
    return rich, poor


def test_a_lent_node_comes_back_when_a_run_that_is_worth_more_loses_one(
    lent: tuple[Training, Training],
) -> None:
    rich, poor = lent
    stage, lost = rich.stage, rich.nodes()[1]
    cut = time.time()
    stage.lab.fault("cut-link", node=lost)
    shrunk = first_with(rich, 2, cut)
    given_back = first_with(poor, 2, cut)
    recalled = first_with(rich, 3, shrunk)
    print(
        f"cut -> trains on two {shrunk - cut:.1f} s -> the lent node is given back "
        f"{given_back - cut:.1f} s -> it trains in the other run {recalled - cut:.1f} s; recall "
        f"{recalled - shrunk:.1f} s"
    )
    assert recalled - shrunk < RECALLED_WITHIN_SECONDS, rich.story()
    no_node_was_in_two_runs(rich, poor)
    rich.goes_on()
    poor.goes_on()
    assert (rich.slurm("Restarts"), poor.slurm("Restarts")) == ("0", "0")
    assert "shrinks from 3 to 2 nodes" in poor.story()
    assert "a companion job of 1 nodes is submitted" in rich.story()


def test_a_lent_node_goes_to_a_job_that_is_submitted_and_is_lent_again_after_it(
    lent: tuple[Training, Training],
) -> None:
    rich, poor = lent
    submitted = time.time()
    third = rich.stage.training(LOCKSTEP, nodes=1, user="bob")
    print(f"submitted -> trains on the lent node: {third.steps()[0].time - submitted:.1f} s")
    first_with(poor, 2, submitted)
    no_node_was_in_two_runs(rich, poor, third)
    third.finish()
    third.ends("COMPLETED")
    ended = time.time()
    took = first_with(poor, 3, ended) - ended
    print(f"the job has ended -> its node is lent again: {took:.1f} s")


def test_in_mode_observe_the_same_is_told_and_nothing_is_done(stage: Stage) -> None:
    poor = stage.training(LOCKSTEP, "--min-nodes=1", "--max-nodes=4", nodes=2)
    stage.set_mode("observe")
    stage.set_plans(True)
    told = "grows from 2 to 4 nodes"
    until("the plan is told", lambda: told in poor.story(), LENT_WITHIN_SECONDS)
    time.sleep(5)
    assert "not carried out: mode observe" in poor.story()
    assert {step.world for step in poor.steps()} == {2}
    assert set(stage.node_states()) == set(NODES)
