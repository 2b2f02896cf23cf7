"""What every Slurm promises: SimulatedSlurm, and CommandLineSlurm on a real cluster (the lab).

Each test is one story told twice; only who plays the world differs.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import pytest

from lab import Lab, LabSpec
from unicrond.errors import Refused, SlurmUnavailable
from unicrond.model.cluster import Allocation, JobState, NodeState, Snapshot
from unicrond.ports import Slurm
from unicrond.slurm.cli import CommandLineSlurm
from unicrond.slurm.codec import Decoder
from unicrond.slurm.hostlist import expand, fold
from unicrond.slurm.simulated import SimulatedSlurm
from unicrond.slurm.watch import SystemClock
from unicrond.slurm.watcher import watch_command

OURS = "unicron: node_lost incident=1"
NODES = tuple(f"n{number}" for number in range(1, 5))
SWITCHES = {"n1": "s1", "n2": "s1", "n3": "s2", "n4": "s2"}


class World(Protocol):
    slurm: Slurm

    def submit(
        self, nodes: int, gpus_per_node: int = 8, no_kill: bool = True, user: str = "alice"
    ) -> int: ...
    def cancel(self, job_id: int) -> None: ...
    def hold(self, job_id: int) -> None: ...
    def admin_says(self, job_id: int, words: str) -> None: ...
    def cut(self, node: str) -> None: ...
    def restore(self, node: str) -> None: ...
    def repair(self, node: str) -> None: ...
    def person_drains(self, node: str, reason: str) -> None: ...
    def person_resumes(self, node: str) -> None: ...
    def stop_controller(self) -> None: ...
    def start_controller(self) -> None: ...
    def wait(self, seconds: float) -> None: ...


class HandClock:
    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        return self.at


class SimulatedWorld:
    def __init__(self) -> None:
        self._clock = HandClock()
        self._simulated = SimulatedSlurm(self._clock)
        self.slurm: Slurm = self._simulated
        for node in NODES:
            self._simulated.add_node(node, switch=SWITCHES[node])
        self.cut = self._simulated.cut
        self.restore = self.repair = self._simulated.restore
        self.cancel = self._simulated.scancel
        self.hold = self._simulated.hold_by_person
        self.admin_says = self._simulated.admin_says
        self.person_resumes = self._simulated.resume_by_person
        self.stop_controller = self._simulated.stop_controller
        self.start_controller = self._simulated.start_controller

    def submit(
        self, nodes: int, gpus_per_node: int = 8, no_kill: bool = True, user: str = "alice"
    ) -> int:
        options = {"gpus_per_node": gpus_per_node, "no_kill": no_kill, "user": user}
        return self._simulated.submit(nodes, **options)

    def person_drains(self, node: str, reason: str) -> None:
        self._simulated.drain_by_person(node, reason)

    def wait(self, seconds: float) -> None:
        self._clock.at += seconds


class LabWorld:
    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.slurm: Slurm = CommandLineSlurm(SystemClock(), lab.command([], user="unicron"))

    def submit(
        self, nodes: int, gpus_per_node: int = 8, no_kill: bool = True, user: str = "alice"
    ) -> int:
        options = [
            f"-N{nodes}",
            f"--gpus-per-node={gpus_per_node}",
            "--requeue",
            "--job-name=train",
        ]
        options += ["--no-kill"] if no_kill else []
        script = "#!/bin/bash\nexec sleep 900\n"
        done = self._lab.exec(["sbatch", "--parsable", *options], user=user, text_in=script)
        return int(done.stdout)

    def cancel(self, job_id: int) -> None:
        self._lab.exec(["scancel", str(job_id)], user="alice")

    def hold(self, job_id: int) -> None:
        self._lab.exec(["scontrol", "hold", str(job_id)], user="alice")

    def admin_says(self, job_id: int, words: str) -> None:
        self._scontrol(f"JobId={job_id}", f"AdminComment={words}")

    def cut(self, node: str) -> None:
        self._lab.fault("cut-link", node=node)

    def restore(self, node: str) -> None:
        self._lab.fault("restore-link", node=node)

    def repair(self, node: str) -> None:
        """Slurm seldom asks a drained node whether it is back; a slurmd that starts says so."""
        self.restore(node)
        self._lab.fault("kill-slurmd", node=node)
        time.sleep(1)
        self._lab.fault("start-slurmd", node=node)

    def person_drains(self, node: str, reason: str) -> None:
        self._scontrol(f"NodeName={node}", "State=DRAIN", f"Reason={reason}")

    def person_resumes(self, node: str) -> None:
        self._scontrol(f"NodeName={node}", "State=RESUME")

    def stop_controller(self) -> None:
        self._lab.fault("stop-slurmctld")

    def start_controller(self) -> None:
        self._lab.fault("start-slurmctld")

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def _scontrol(self, *words: str) -> None:
        self._lab.exec(["scontrol", "update", *words])

    def tidy(self) -> None:
        """Every node idle, no job: where the next story starts."""
        for user in ("alice", "bob"):
            self._lab.exec(["scancel", f"--user={user}"])
        for node, seen in (self.slurm.snapshot().nodes or {}).items():
            if seen.state is not NodeState.UP and seen.raw_state != "IDLE+NOT_RESPONDING":
                self._lab.exec(
                    ["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False
                )
        _until(self, _all_idle, 60)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    lab = Lab(os.environ.get("UNICRON_CONTRACT_LAB", "slurmlab"))  # so that two may run at once
    lab.up(LabSpec(nodes=len(NODES), nodes_per_switch=2))
    yield lab
    lab.down()


@pytest.fixture(params=["simulated", pytest.param("lab", marks=pytest.mark.slurm)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "simulated":
        yield SimulatedWorld()
        return
    real = LabWorld(request.getfixturevalue("lab"))
    yield real
    real.tidy()


def _until(world: World, told: Callable[[Snapshot], bool], within_seconds: float) -> Snapshot:
    for _ in range(int(within_seconds / 0.5)):
        seen = world.slurm.snapshot()
        if told(seen):
            return seen
        world.wait(0.5)
    raise AssertionError(f"not within {within_seconds} s: {seen}")


def _all_idle(seen: Snapshot) -> bool:
    return seen.nodes is not None and all(node.raw_state == "IDLE" for node in seen.nodes.values())


def _job(seen: Snapshot, job_id: int) -> Allocation:
    assert seen.allocations is not None, seen.error
    return seen.allocations[job_id]


def _await_job(world: World, job_id: int, state: JobState, seconds: float = 20) -> Allocation:
    seen = _until(world, lambda seen: _job(seen, job_id).state is state, seconds)
    return _job(seen, job_id)


def _await_node(world: World, node: str, state: NodeState, seconds: float = 20) -> None:
    _until(world, lambda seen: seen.nodes is not None and seen.nodes[node].state is state, seconds)


def _running(world: World, nodes: int, gpus_per_node: int = 8) -> Allocation:
    return _await_job(world, world.submit(nodes, gpus_per_node), JobState.RUNNING)


def _away_from(job: Allocation) -> str:
    return next(node for node in NODES if node not in job.nodes)


def _without_batch_host(job: Allocation) -> Sequence[str]:
    return [node for node in job.nodes if node != job.batch_host]


def test_a_snapshot_shows_nodes_and_jobs(world: World) -> None:
    job = _running(world, 2)
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
    assert not _running(world, 1, gpus_per_node=2).whole_nodes


def test_a_cancelled_job_is_still_shown(world: World) -> None:
    job = _running(world, 1)
    world.cancel(job.job_id)
    ended = _await_job(world, job.job_id, JobState.CANCELLED)
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
    job = _running(world, 3)
    keep = job.nodes[:2]
    world.slurm.shrink(job.job_id, keep)
    world.slurm.shrink(job.job_id, keep)
    left = _job(world.slurm.snapshot(), job.job_id)
    assert (left.state, left.nodes, left.gpus) == (JobState.RUNNING, keep, 16)


def test_a_shrink_off_the_batch_host_is_refused(world: World) -> None:
    job = _running(world, 2)
    with pytest.raises(Refused, match=f"batch host {job.batch_host}"):
        world.slurm.shrink(job.job_id, _without_batch_host(job))
    assert _job(world.slurm.snapshot(), job.job_id).nodes == job.nodes


def test_a_shrink_to_nodes_that_the_job_does_not_hold_is_refused(world: World) -> None:
    job = _running(world, 2)
    with pytest.raises(Refused, match="does not hold"):
        world.slurm.shrink(job.job_id, [job.batch_host, _away_from(job)])


def test_a_job_that_does_not_run_is_not_shrunk(world: World) -> None:
    job = _running(world, 2)
    world.cancel(job.job_id)
    _await_job(world, job.job_id, JobState.CANCELLED)
    with pytest.raises(Refused, match="not running"):
        world.slurm.shrink(job.job_id, [job.batch_host])


def test_a_requeue_counts_once_and_waits_for_its_begin_time(world: World) -> None:
    job = _running(world, 2)
    world.slurm.requeue(job.job_id, restarts=0)
    world.slurm.requeue(job.job_id, restarts=0)
    waiting = _await_job(world, job.job_id, JobState.PENDING)
    world.slurm.requeue(job.job_id, restarts=0)
    world.slurm.requeue(job.job_id, restarts=1)
    assert (waiting.restarts, waiting.nodes) == (1, ())
    world.wait(5)
    assert _job(world.slurm.snapshot(), job.job_id).state is JobState.PENDING


def test_an_expedited_job_starts_at_its_size_without_the_excluded_nodes(world: World) -> None:
    job = _running(world, 2)
    world.slurm.requeue(job.job_id, restarts=0)
    _await_job(world, job.job_id, JobState.PENDING)
    world.slurm.expedite(job.job_id, [job.batch_host])
    again = _await_job(world, job.job_id, JobState.RUNNING)
    assert len(again.nodes) == 2
    assert job.batch_host not in again.nodes
    assert again.restarts == 1


def test_what_was_excluded_for_one_start_is_free_for_the_next(world: World) -> None:
    job = _running(world, len(NODES) - 1)
    for restart, exclude in enumerate(([job.batch_host], [])):
        world.slurm.requeue(job.job_id, restarts=restart)
        _await_job(world, job.job_id, JobState.PENDING)
        world.slurm.expedite(job.job_id, exclude, len(NODES) - (not restart))
        job = _await_job(world, job.job_id, JobState.RUNNING)
    assert set(job.nodes) == set(NODES)


def test_a_verdict_is_told_in_the_job(world: World) -> None:
    job = _running(world, 1)
    world.slurm.tell(job.job_id, "restart: rank 3 on n2 ended")
    world.slurm.tell(job.job_id, 'restart: it said "JobState=FAILED"')
    assert _job(world.slurm.snapshot(), job.job_id).state is JobState.RUNNING
    world.admin_says(job.job_id, "watch this one")
    with pytest.raises(Refused, match="somebody else's words"):
        world.slurm.tell(job.job_id, "restart")


@pytest.mark.parametrize("kept", [True, False])
def test_nodes_are_kept_for_a_requeued_job_or_go_to_who_waits(world: World, kept: bool) -> None:
    job = _running(world, 3)
    other = world.submit(3, user="bob")
    if kept:
        world.slurm.reserve(job.job_id, "alice", job.nodes)
        world.slurm.reserve(job.job_id, "alice", job.nodes)
    world.slurm.requeue(job.job_id, restarts=0)
    _await_job(world, job.job_id, JobState.PENDING)
    world.wait(5)
    first = _job(world.slurm.snapshot(), other).state
    world.slurm.expedite(job.job_id, [])
    if kept:
        assert first is JobState.PENDING
        assert _await_job(world, job.job_id, JobState.RUNNING).nodes == job.nodes
    else:
        assert first is JobState.RUNNING
        world.cancel(job.job_id)


@pytest.mark.parametrize("nodes", [1, 3])
def test_an_expedited_job_starts_at_another_size(world: World, nodes: int) -> None:
    job = _running(world, 2)
    world.slurm.requeue(job.job_id, restarts=0)
    _await_job(world, job.job_id, JobState.PENDING)
    world.slurm.expedite(job.job_id, [], nodes)
    again = _await_job(world, job.job_id, JobState.RUNNING)
    assert (len(again.nodes), again.gpus) == (nodes, 8 * nodes)


def test_a_job_that_its_user_holds_is_not_expedited(world: World) -> None:
    job = _running(world, 1)
    world.slurm.requeue(job.job_id, restarts=0)
    _await_job(world, job.job_id, JobState.PENDING)
    world.hold(job.job_id)
    with pytest.raises(Refused, match="on hold"):
        world.slurm.expedite(job.job_id, [])


def test_our_drain_is_undone_and_nobody_elses(world: World) -> None:
    world.slurm.drain("n4", OURS)
    with pytest.raises(Refused, match="another reason by now"):
        world.slurm.resume("n4", "unicron: node_lost incident=2")
    world.slurm.resume("n4", OURS)
    world.slurm.resume("n4", OURS)
    _await_node(world, "n4", NodeState.UP)
    assert (world.slurm.snapshot().nodes or {})["n4"].reason == ""
    world.person_drains("n4", "disk is slow")
    with pytest.raises(Refused, match="another reason by now: disk is slow"):
        world.slurm.resume("n4", OURS)


def test_a_lost_node_is_resumed_once_it_responds(world: World) -> None:
    world.slurm.drain("n4", OURS)
    world.cut("n4")
    _await_node(world, "n4", NodeState.DOWN, 70)
    with pytest.raises(Refused, match="does not respond"):
        world.slurm.resume("n4", OURS)
    world.repair("n4")
    _until(world, lambda s: "NOT_RESP" not in (s.nodes or {})["n4"].raw_state, 60)
    world.slurm.resume("n4", OURS)
    _await_node(world, "n4", NodeState.UP, 20)


def test_a_job_is_cancelled_for_its_owner_alone_and_once(world: World) -> None:
    job = _running(world, 1)
    with pytest.raises(Refused, match="belongs to alice"):
        world.slurm.cancel(job.job_id, job.uid + 1)
    world.slurm.cancel(job.job_id, job.uid)
    _await_job(world, job.job_id, JobState.CANCELLED)
    world.slurm.cancel(job.job_id, job.uid)


def test_a_running_job_is_not_expedited(world: World) -> None:
    job = _running(world, 1)
    with pytest.raises(Refused, match="not pending yet"):
        world.slurm.expedite(job.job_id, [])


def test_a_job_that_its_owner_cancelled_stays_cancelled(world: World) -> None:
    job = _running(world, 1)
    world.cancel(job.job_id)
    _await_job(world, job.job_id, JobState.CANCELLED)
    with pytest.raises(Refused, match="cancelled"):
        world.slurm.requeue(job.job_id, restarts=0)


def test_a_job_that_is_being_cancelled_is_not_brought_back(world: World) -> None:
    job = _running(world, 1)
    world.cancel(job.job_id)
    with pytest.raises((Refused, SlurmUnavailable), match=r"completing|cancelled"):
        world.slurm.requeue(job.job_id, restarts=0)
    assert _await_job(world, job.job_id, JobState.CANCELLED).restarts == 0


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


def test_without_no_kill_a_lost_node_requeues_the_job(world: World) -> None:
    job_id = world.submit(2, no_kill=False)
    job = _await_job(world, job_id, JobState.RUNNING)
    world.cut(job.nodes[1])
    _until(world, lambda seen: _job(seen, job_id).restarts == 1, 70)
    world.restore(job.nodes[1])
    _await_node(world, job.nodes[1], NodeState.UP, 60)


def test_a_job_survives_its_batch_host_and_heals_by_requeue(world: World) -> None:
    job = _running(world, 2)
    lost, survivors = job.batch_host, tuple(_without_batch_host(job))
    world.cut(lost)
    world.slurm.drain(lost, OURS)
    _await_node(world, lost, NodeState.DOWN, 70)
    left = _job(world.slurm.snapshot(), job.job_id)
    assert (left.state, left.nodes, left.batch_host) == (JobState.RUNNING, survivors, lost)
    world.slurm.shrink(job.job_id, survivors)
    world.slurm.requeue(job.job_id, restarts=0)
    _await_job(world, job.job_id, JobState.PENDING, 60)
    world.slurm.expedite(job.job_id, [lost])
    assert lost not in _await_job(world, job.job_id, JobState.RUNNING).nodes
    world.restore(lost)
    world.wait(5)  # Slurm seldom asks a drained node whether it is back; drained it stays
    assert "DRAIN" in (world.slurm.snapshot().nodes or {})[lost].raw_state
    world.person_resumes(lost)
    _await_node(world, lost, NodeState.UP)


def test_while_slurmctld_is_down_everything_is_unknown_and_nothing_is_done(world: World) -> None:
    job = _running(world, 2)
    world.stop_controller()
    seen = world.slurm.snapshot()
    assert (seen.nodes, seen.allocations) == (None, None)
    assert "Unable to contact slurm controller" in seen.error
    with pytest.raises(SlurmUnavailable):
        world.slurm.requeue(job.job_id, restarts=0)
    with pytest.raises(SlurmUnavailable):
        world.slurm.drain("n4", OURS)
    world.start_controller()
    again = _until(world, lambda seen: bool(seen.allocations), 20)
    assert _job(again, job.job_id).restarts == 0
    _until(world, lambda s: {n.state for n in (s.nodes or {}).values()} == {NodeState.UP}, 60)


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
