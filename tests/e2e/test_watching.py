"""Jobs with GPUs that unicrond does not look after: known, counted, never touched."""

from __future__ import annotations

from typing import Any

import pytest
from stage import Stage, until

pytestmark = pytest.mark.slurm


def allocation(stage: Stage, job: int, current: bool = True) -> dict[str, Any]:
    items = stage.api("allocations", current=str(current).lower()).get("items", [])
    return next((item for item in items if item["job_id"] == job), {})


def sbatch(stage: Stage, *options: str, user: str = "alice") -> int:
    command = ["sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", "srun sleep 600"]
    return int(stage.lab.exec(command, user=user).stdout)


def test_every_job_with_gpus_is_in_the_store_with_its_facts(stage: Stage) -> None:
    training = stage.training(nodes=2)
    other = sbatch(stage, "-N3", "--gpus-per-node=2", "--time=10", "--job-name=mine", user="bob")
    waits = sbatch(stage, "-N4", "--gpus-per-node=2", user="bob")
    without = sbatch(stage, "-N1")
    until("all are seen", lambda: allocation(stage, waits).get("state") == "pending")
    until("it runs", lambda: allocation(stage, other).get("state") == "running")
    seen = allocation(stage, training.job)
    assert (seen["user"], seen["account"], seen["partition"]) == ("alice", "lab", "main")
    assert (seen["state"], seen["nodes"], seen["gpus"]) == ("running", ["n1", "n2"], 4)
    assert 0 < seen["submit_time"] <= seen["start_time"]
    assert (seen["managed"], seen["time_limit_seconds"]) == (True, 0)
    seen = allocation(stage, other)
    assert (seen["user"], seen["name"], seen["managed"]) == ("bob", "mine", False)
    assert (seen["nodes"], seen["gpus"]) == (["n3", "n4", "n5"], 6)
    assert seen["time_limit_seconds"] == 600
    seen = allocation(stage, waits)
    assert (seen["nodes"], seen["start_time"], seen["gpus"]) == ([], 0, 8)
    assert seen["reason"]
    assert allocation(stage, without) == {}, "it has no GPUs"
    shown = stage.lab.exec(["unicronctl", "allocations"]).stdout
    assert "not managed" in shown
    stage.lab.exec(["scancel", str(other)], user="bob")
    until("its end is seen", lambda: allocation(stage, other, False).get("state") == "cancelled")
    assert allocation(stage, other, False)["end_time"] > 0


def test_a_job_without_the_wrapper_is_never_touched(stage: Stage) -> None:
    job = sbatch(stage, "-N2", "--gpus-per-node=2", "--no-kill")
    until("it runs", lambda: allocation(stage, job).get("state") == "running")
    until("its steps run", lambda: any(p.name == "sleep" for p in of_alice(stage, "n2")))
    stage.lab.fault("cut-link", node="n2")
    until("Slurm misses it", lambda: "NOT_RESP" in stage.node_states()["n2"], 60)
    assert stage.api("incidents")["items"] == [] or all(
        i["run_id"] != job for i in stage.api("incidents")["items"]
    )
    assert "DRAIN" not in stage.node_states()["n2"]
    assert not stage.reason("n2").startswith("unicron")
    assert stage.api(f"runs/{job}") == {}


def of_alice(stage: Stage, node: str) -> list[Any]:
    return [p for p in stage.inside(node) if p.uid == 60921]


def test_a_job_with_parts_of_nodes_is_observed_and_says_so(stage: Stage) -> None:
    stage.agent_conf(unattended_timeout_seconds=6)
    training = stage.training(options=("--gpus-per-node=1",))
    assert "this job has 1 of the 2 GPUs of n1" in training.output()
    assert "the job has parts of nodes: it is observed only" in training.story()
    training.kill_rank(1)
    training.until("a decision", lambda: "not carried out: the job has parts" in training.story())
    training.goes_on(generation=2)  # by its agents
    assert training.kinds() == set()
    assert training.heals()["state"] == "resolved"


def ctl(stage: Stage, user: str, *words: str) -> tuple[int, str]:
    done = stage.lab.exec(["unicronctl", *words], user=user, check=False)
    return done.returncode, done.stdout + done.stderr


def test_people_see_what_happened_and_command_what_is_theirs(stage: Stage) -> None:
    training = stage.training(nodes=2)
    job = str(training.job)
    training.kill_rank(1)
    training.heals()
    for words in (["status"], ["runs"], ["incidents", "--all"], ["why", job], ["nodes"]):
        code, text = ctl(stage, "bob", *words)
        assert code == 0, text
        assert job in text or words in (["nodes"], ["status"]), text
    assert "restarting run" in ctl(stage, "bob", "why", job)[1]
    assert ctl(stage, "bob", "mode", "paused", "--run", job)[0] != 0, "it is not his"
    assert ctl(stage, "alice", "mode", "paused")[0] != 0, "nor is the cluster hers"
    assert ctl(stage, "alice", "mode", "observe", "--run", job)[0] == 0
    until("it is set", lambda: training.run()["mode"] == "observe")
    assert stage.health()["mode"] == "active"
    assert ctl(stage, "root", "mode", "paused")[0] == 0
    until("the cluster's too", lambda: stage.health()["mode"] == "paused")
