"""How runs end: well, by their user, by a program that cannot work. Nothing is ever left behind."""

from __future__ import annotations

import pytest
from stage import LOCKSTEP, Stage, Training, until

pytestmark = pytest.mark.slurm

KILL_WAIT_SECONDS = 5


def left_on(stage: Stage, *nodes: str) -> list[str]:
    return [f"{node}: {line}" for node in nodes for line in stage.processes_of_users(node)]


def recorded(training: Training) -> list[str]:
    """State and exit code in Slurm's accounting."""
    words = ["sacct", "--noheader", "-X", "-P", "--format=State,ExitCode", f"-j{training.job}"]
    return training.stage.lab.exec(words).stdout.strip().split("|")


def test_a_run_whose_ranks_all_end_with_0_completes(stage: Stage) -> None:
    training = stage.training(ranks_per_node=2)
    training.finish()
    training.ends("COMPLETED")
    until("sacct says so", lambda: recorded(training) == ["COMPLETED", "0:0"])
    until("unicrond too", lambda: training.run()["state"] == "completed")
    assert training.incidents() == []
    assert left_on(stage, "n1", "n2", "n3") == []


@pytest.mark.parametrize("program", [LOCKSTEP, f"{LOCKSTEP} --deaf"], ids=["hears", "deaf"])
def test_a_cancelled_run_is_gone_within_kill_wait(stage: Stage, program: str) -> None:
    training = stage.training(program, ranks_per_node=2)
    stage.lab.exec(["scancel", str(training.job)], user="alice")
    training.until(
        "everything is gone", lambda: not left_on(stage, "n1", "n2", "n3"), KILL_WAIT_SECONDS + 5
    )
    training.ends("CANCELLED")
    until("unicrond says so", lambda: training.run()["state"] == "cancelled")
    until("the nodes are idle", lambda: set(stage.node_states().values()) == {"IDLE"}, 10)
    assert stage.reasons() == {}, "no node is drained"
    # its ranks may be seen to die of each other before Slurm says why
    assert training.kinds() <= {"notify", "stop_ranks"}


def test_ranks_that_ignore_sigterm_do_not_hold_up_a_heal(stage: Stage) -> None:
    training = stage.training(f"{LOCKSTEP} --deaf --alone", ranks_per_node=2)
    training.kill_rank(1)
    training.goes_on(generation=2)
    ended = max(s.time for s in training.of(1))
    assert ended < min(s.time for s in training.of(2)), "all old ranks were gone before"
    assert stage.reasons() == {}


def test_a_rank_that_exits_0_early_is_the_root_if_the_others_fail_for_it(stage: Stage) -> None:
    training = stage.submit(f"{LOCKSTEP} --end 1 20 0")
    training.goes_on(generation=2)
    healed = training.heals()
    assert (healed["root_rank"], healed["root_node"]) == (1, "n2")
    assert "rank 1 on n2 ended with 0 while others ran on" in training.story()


def test_a_rank_that_exits_0_early_is_no_failure_if_the_others_go_on(stage: Stage) -> None:
    training = stage.training(f"{LOCKSTEP} --alone --end 1 20 0")
    training.until_step(60)
    assert training.generations() == [1]
    training.finish()
    training.ends("COMPLETED")
    assert training.incidents() == []


def test_a_program_that_always_fails_ends_with_93_and_a_sentence(stage: Stage) -> None:
    training = stage.submit("python3 -c 'import sys; sys.exit(3)'", nodes=2)
    training.ends("FAILED", within_seconds=120)
    assert training.slurm("ExitCode") == "93:0"
    until("sacct says so", lambda: recorded(training) == ["FAILED", "93:0"])
    until("unicrond too", lambda: training.run()["state"] == "failed")
    why = training.run()["end_reason"]
    assert "ended with exit code 3" in why
    assert why.endswith(f"ending run {training.job} with exit code 93")
    assert why in training.output(), "the user reads it where he looks first"
    starts = training.run()["generation"] % 1000 + int(training.slurm("Restarts"))
    assert starts <= 5, "it may be moved off a node on which it failed twice, once"
    assert stage.reasons() == {}


def test_a_program_that_says_93_is_not_started_again(stage: Stage) -> None:
    training = stage.submit(f"{LOCKSTEP} --end 1 10 93", nodes=2)
    training.ends("FAILED")
    assert training.slurm("ExitCode") == "93:0"
    assert training.generations() == [1]


def test_what_cannot_work_is_said_at_once_and_nothing_is_started(stage: Stage) -> None:
    words = {
        "no-such-program": ((), "no-such-program: no such program on PATH"),
        "true": (("--min-nodes=3",), "--min-nodes 3: the job has 1 nodes"),
        "false": (("--min-nodes=1", "--max-nodes=0"), "--max-nodes 0: is below --min-nodes 1"),
        "sh": (("--weight=-1",), "--weight -1: must be a number above 0"),
        "bash": (("--wight=2",), "unrecognized arguments: --wight=2"),
        "env": (("--ranks-per-node=0",), "--ranks-per-node 0: must be between 1 and 1024"),
    }
    runs = {
        program: stage.submit(program, *wishes, nodes=1, ranks_per_node=None)
        for program, (wishes, _) in words.items()
    }
    for program, training in runs.items():
        training.ends("FAILED")
        assert training.slurm("ExitCode") == "2:0", program
        until("its output", training.output)
        assert f"unicron-run: {words[program][1]}" in training.output()
    assert left_on(stage, *stage.node_states()) == []
    assert not any(training.run() for training in runs.values()), "unicrond never heard of them"


def test_a_script_of_ones_own_is_warned_where_no_kill_is_missing(stage: Stage) -> None:
    line = "/opt/unicron/bin/unicron-run --ranks-per-node=1 -- true"
    asks = "#SBATCH --no-kill --requeue --open-mode=append\n"
    runs = [
        stage.submit_script(f"#!/bin/bash\n{head}echo before\n{line}\necho after $?\n", *options)
        for head, options in (("", ()), (asks, ()), ("", ("--no-kill",)))
    ]
    for training in runs:
        training.ends("COMPLETED")
        until("its output", lambda t=training: "after 0" in t.output())
    warned = ["WARNING: this job seems to lack --no-kill" in t.output() for t in runs]
    assert warned == [True, False, False]
