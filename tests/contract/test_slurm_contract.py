"""What every Slurm promises: SimulatedSlurm, and CommandLineSlurm on a real cluster (the lab).

Each test is one story told twice; only who plays the world differs.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from slurmworld import (
    NODES,
    OURS,
    SWITCHES,
    World,
    await_job,
    await_node,
    away_from,
    job_in,
    running,
    until,
    without_batch_host,
)

from lab import Lab
from unicrond.errors import Refused, SlurmUnavailable
from unicrond.model.cluster import JobState, NodeState
from unicrond.slurm.codec import Decoder
from unicrond.slurm.hostlist import expand, fold
from unicrond.slurm.watcher import watch_command


def test_a_snapshot_shows_nodes_and_jobs(world: World) -> None:
    job = running(world, 2)
    seen = world.slurm.snapshot()
    assert seen.error == ""
    assert seen.nodes is not None
    assert tuple(seen.nodes) == NODES
    assert {node.state for node in seen.nodes.values()} == {NodeState.UP}
    assert {node.gpus for node in seen.nodes.values()} == {8}
    assert (job.name, job.user, job.gpus, job.whole_nodes) == ("train", "alice", 16, True)
    assert (job.restarts, job.end_time) == (0, 0.0)
    assert len(job.nodes) == 2
    assert job.batch_host == job.nodes[0]
    assert job.start_time >= job.submit_time > 0


def test_each_node_says_on_which_switch_it_hangs(world: World) -> None:
    seen = world.slurm.snapshot()
    assert {name: node.switch for name, node in (seen.nodes or {}).items()} == SWITCHES


def test_no_jobs_are_none_and_not_unknown(world: World) -> None:
    seen = world.slurm.snapshot()
    assert seen.allocations is not None
    assert not [job for job in seen.allocations.values() if job.state.live]


def test_a_job_without_gpus_is_not_an_allocation(world: World) -> None:
    job_id = world.submit(1, gpus_per_node=0)
    assert job_id not in (world.slurm.snapshot().allocations or {})


def test_a_job_with_part_of_a_node_says_so(world: World) -> None:
    assert not running(world, 1, gpus_per_node=2).whole_nodes


def test_a_cancelled_job_is_still_shown(world: World) -> None:
    job = running(world, 1)
    world.cancel(job.job_id)
    ended = await_job(world, job.job_id, JobState.CANCELLED)
    assert ended.end_time >= ended.start_time


def test_a_drained_node_carries_our_reason_and_draining_again_changes_nothing(world: World) -> None:
    world.slurm.drain("n4", OURS)
    world.slurm.drain("n4", "unicron: node_lost incident=2")
    node = (world.slurm.snapshot().nodes or {})["n4"]
    assert node.state is NodeState.DRAINED
    assert (node.reason, node.reason_user) == (OURS, "unicron")


def test_a_node_drained_by_a_person_is_left_alone(world: World) -> None:
    world.person_drains("n4", "disk is slow")
    with pytest.raises(Refused, match="root's reason: disk is slow"):
        world.slurm.drain("n4", OURS)
    assert (world.slurm.snapshot().nodes or {})["n4"].reason == "disk is slow"


def test_a_reason_that_is_not_ours_is_never_written(world: World) -> None:
    with pytest.raises(Refused, match="starts with 'unicron: '"):
        world.slurm.drain("n4", "broken")
    assert (world.slurm.snapshot().nodes or {})["n4"].state is NodeState.UP


def test_a_node_that_does_not_exist_is_not_drained(world: World) -> None:
    with pytest.raises(Refused, match="n99"):
        world.slurm.drain("n99", OURS)


def test_a_shrink_gives_nodes_back_and_is_done_once(world: World) -> None:
    job = running(world, 3)
    keep = job.nodes[:2]
    world.slurm.shrink(job.job_id, keep)
    world.slurm.shrink(job.job_id, keep)
    left = job_in(world.slurm.snapshot(), job.job_id)
    assert (left.state, left.nodes, left.gpus) == (JobState.RUNNING, keep, 16)


def test_a_shrink_off_the_batch_host_is_refused(world: World) -> None:
    job = running(world, 2)
    with pytest.raises(Refused, match=f"batch host {job.batch_host}"):
        world.slurm.shrink(job.job_id, without_batch_host(job))
    assert job_in(world.slurm.snapshot(), job.job_id).nodes == job.nodes


def test_a_shrink_to_nodes_that_the_job_does_not_hold_is_refused(world: World) -> None:
    job = running(world, 2)
    with pytest.raises(Refused, match="does not hold"):
        world.slurm.shrink(job.job_id, [job.batch_host, away_from(job)])


def test_a_job_that_does_not_run_is_not_shrunk(world: World) -> None:
    job = running(world, 2)
    world.cancel(job.job_id)
    await_job(world, job.job_id, JobState.CANCELLED)
    with pytest.raises(Refused, match="not running"):
        world.slurm.shrink(job.job_id, [job.batch_host])


def test_our_drain_is_undone_and_nobody_elses(world: World) -> None:
    world.slurm.drain("n4", OURS)
    with pytest.raises(Refused, match="another reason by now"):
        world.slurm.resume("n4", "unicron: node_lost incident=2")
    world.slurm.resume("n4", OURS)
    world.slurm.resume("n4", OURS)
    await_node(world, "n4", NodeState.UP)
    assert (world.slurm.snapshot().nodes or {})["n4"].reason == ""
    world.person_drains("n4", "disk is slow")
    with pytest.raises(Refused, match="another reason by now: disk is slow"):
        world.slurm.resume("n4", OURS)


def test_a_lost_node_is_resumed_once_it_responds(world: World) -> None:
    world.slurm.drain("n4", OURS)
    world.cut("n4")
    await_node(world, "n4", NodeState.DOWN, 70)
    with pytest.raises(Refused, match="does not respond"):
        world.slurm.resume("n4", OURS)
    world.repair("n4")
    until(world, lambda s: "NOT_RESP" not in (s.nodes or {})["n4"].raw_state, 60)
    world.slurm.resume("n4", OURS)
    await_node(world, "n4", NodeState.UP, 20)


def test_a_job_is_cancelled_for_its_owner_alone_and_once(world: World) -> None:
    job = running(world, 1)
    with pytest.raises(Refused, match="belongs to alice"):
        world.slurm.cancel(job.job_id, job.uid + 1)
    world.slurm.cancel(job.job_id, job.uid)
    await_job(world, job.job_id, JobState.CANCELLED)
    world.slurm.cancel(job.job_id, job.uid)


def test_acts_on_a_job_that_does_not_exist_are_refused(world: World) -> None:
    acts: list[Callable[[], None]] = [
        lambda: world.slurm.requeue(999, 0),
        lambda: world.slurm.shrink(999, ["n1"]),
        lambda: world.slurm.expedite(999, []),
        lambda: world.slurm.tell(999, "restart"),
    ]
    for act in acts:
        with pytest.raises(Refused, match="Invalid job id"):
            act()


def test_while_slurmctld_is_down_everything_is_unknown_and_nothing_is_done(world: World) -> None:
    job = running(world, 2)
    world.stop_controller()
    seen = world.slurm.snapshot()
    assert (seen.nodes, seen.allocations) == (None, None)
    assert "Unable to contact slurm controller" in seen.error
    with pytest.raises(SlurmUnavailable):
        world.slurm.requeue(job.job_id, restarts=0)
    with pytest.raises(SlurmUnavailable):
        world.slurm.drain("n4", OURS)
    world.start_controller()
    again = until(world, lambda seen: bool(seen.allocations), 20)
    assert job_in(again, job.job_id).restarts == 0
    until(world, lambda s: {n.state for n in (s.nodes or {}).values()} == {NodeState.UP}, 60)


@pytest.mark.slurm
@pytest.mark.parametrize(
    "text",
    ["n[01-03,20]", "r[0-1]n[08-11]", "n[1-010]", "n1,n1", "n[3,1]", ",n1,,n2", "n[1-2],[3-4]"],
)
def test_hostlists_mean_to_us_what_they_mean_to_slurm(lab: Lab, text: str) -> None:
    def by_slurm(hostlist: str) -> list[str]:
        return lab.exec(["scontrol", "show", "hostnames", hostlist]).stdout.split()

    names = by_slurm(text)
    assert list(expand(text)) == names
    assert by_slurm(fold(names)) == names


@pytest.mark.slurm
def test_the_watch_process_sees_the_cluster(lab: Lab) -> None:
    command = watch_command(2, 5, lab.command([], user="unicron"))
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
    assert tuple(Decoder().decode(done.stdout).snapshot.nodes or {}) == NODES
