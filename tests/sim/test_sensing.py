"""Hardware is seen to fail: who says so decides what is done about it."""

from __future__ import annotations

import pytest
from world import World, kinds, running

from unicrond.core.policy import Policy
from unicrond.errors import Refused
from unicrond.model.cluster import NodeState
from unicrond.model.decision import ActionKind, Mode
from unicrond.model.events import SignalArrived
from unicrond.model.incident import Signal, SignalKind
from unicrond.model.run import RunState


@pytest.fixture
def world() -> World:
    world = World()
    world.nodes(4)
    return world


def seen(
    world: World,
    node: str,
    job: int | None,
    kind: str = "ECC error",
    severity: str = "SEV1",
    text: str = "gpu 0: 1 uncorrected ECC errors",
) -> None:
    """By the agent of a run, or by the root sensor where no job is given."""
    data: dict[str, object] = {"source": "nvml", "kind": kind, "severity": severity, "count": 1}
    told = Signal(world.clock.at, SignalKind.HARDWARE, job, node, text=text, data=data)
    world.tell(SignalArrived(told))


def heals(world: World, job: int, generation: int = 2) -> float:
    return world.until(
        lambda: world.run(job).generation == generation and world.run(job).state is RunState.RUNNING
    )


def story_of(world: World) -> str:
    return "\n".join(entry.text for entry in world.store.journal)


def test_an_agents_word_moves_its_own_run_and_drains_nothing(world: World) -> None:
    job = running(world, min_nodes=2)
    seen(world, "n2", job)
    assert heals(world, job) < 5
    assert world.run(job).assignment.nodes == ("n1", "n3")
    assert world.run(job).restarts_without_progress == 0
    world.pass_seconds(60)
    assert ActionKind.DRAIN not in kinds(world)
    assert world.core.state.incidents == {}


def test_an_agents_word_about_another_node_of_its_run_moves_that_run_alone(world: World) -> None:
    mine, other = running(world, 2, min_nodes=1), running(world, 2, min_nodes=1, uid=1002)
    seen(world, "n3", mine)
    world.pass_seconds(10)
    assert (world.run(mine).generation, world.run(other).generation) == (1, 1)
    assert world.performed == []


def test_a_run_with_nowhere_to_go_stays_where_it_is(world: World) -> None:
    job = running(world, 4)
    seen(world, "n2", job)
    world.pass_seconds(10)
    assert world.performed == []
    assert "nowhere else to go" in story_of(world)


def test_the_root_sensors_word_drains_the_node_and_heals_the_run_on_it(world: World) -> None:
    job = running(world, min_nodes=2)
    seen(world, "n2", None)
    assert heals(world, job) < 5
    assert world.run(job).assignment.nodes == ("n1", "n3")
    world.pass_seconds(5)
    assert world.slurm.snapshot().nodes["n2"].reason.startswith("unicron: ECC error incident=")
    assert kinds(world).count(ActionKind.DRAIN) == 1
    assert world.core.state.incidents == {}


def test_a_run_that_needs_all_its_nodes_is_requeued_elsewhere(world: World) -> None:
    job = running(world)
    seen(world, "n2", None)
    world.until(lambda: world.run(job).restarts == 1 and world.run(job).state is RunState.RUNNING)
    assert "n2" not in world.run(job).nodes


def test_an_idle_node_is_drained_too(world: World) -> None:
    world.pass_seconds(5)
    seen(world, "n4", None)
    world.pass_seconds(5)
    assert world.slurm.snapshot().nodes["n4"].reason.startswith("unicron: ECC error incident=")
    assert world.core.state.incidents == {}


def test_one_fault_told_again_and_again_drains_once(world: World) -> None:
    world.pass_seconds(5)
    for _ in range(40):
        seen(world, "n4", None)
        world.pass_seconds(0.5)
    assert kinds(world) == [ActionKind.DRAIN]


@pytest.mark.parametrize("with_run", [False, True], ids=["an idle node", "a node of a run"])
def test_one_xid_a_thousand_times_is_one_incident_with_a_count(
    world: World, with_run: bool
) -> None:
    if with_run:
        running(world, min_nodes=2)
    world.pass_seconds(1)
    before = len(world.store.journal)
    for _ in range(1000):
        seen(world, "n2", None)
    world.tick()
    [incident] = world.core.state.incidents.values()
    assert incident.count == 1000
    assert len(world.store.journal) - before < 20
    world.pass_seconds(30)
    assert kinds(world).count(ActionKind.DRAIN) == 1
    assert world.core.state.next_incident_id == incident.incident_id + 1


def test_a_later_all_clear_cancels_no_fresh_fault(world: World) -> None:
    job = running(world, min_nodes=2)
    seen(world, "n2", None)
    seen(world, "n2", None, severity="NONE", text="gpu 0: no uncorrected ECC errors")
    seen(world, "n2", job, severity="NONE", text="gpu 0: no uncorrected ECC errors")
    assert heals(world, job) < 5
    world.pass_seconds(5)
    assert world.run(job).assignment.nodes == ("n1", "n3")
    assert world.slurm.snapshot().nodes["n2"].reason.startswith("unicron: ECC error incident=")


def test_a_users_agents_alone_move_only_so_many_of_the_users_runs_within_an_hour() -> None:
    world = World(policy=Policy(mode=Mode.ACTIVE, user_moves_per_hour=1))
    world.nodes(9)
    first, second = (running(world, min_nodes=2) for _ in range(2))
    other = running(world, min_nodes=2, uid=1002)
    moved = []
    for job in (first, second, other):
        seen(world, world.run(job).nodes[1], job)
        world.pass_seconds(20)
        moved.append(world.run(job).generation)
    assert moved == [2, 1, 2]
    assert "alone moved as many runs within the hour as they may" in story_of(world)
    seen(world, world.run(second).nodes[1], None)
    heals(world, second)


def test_such_moves_count_on_when_unicrond_was_restarted() -> None:
    world = World(policy=Policy(mode=Mode.ACTIVE, user_moves_per_hour=1))
    world.nodes(6)
    first, second = (running(world, min_nodes=2) for _ in range(2))
    seen(world, world.run(first).nodes[1], first)
    world.pass_seconds(20)
    world.kill_unicrond()
    world.start_unicrond()
    world.pass_seconds(20)
    seen(world, world.run(second).nodes[1], second)
    world.pass_seconds(20)
    assert [world.run(job).generation for job in (first, second)] == [2, 1]


def test_a_node_drained_by_a_person_is_left_to_that_person(world: World) -> None:
    world.slurm.drain_by_person("n4", "bad fan")
    world.pass_seconds(5)
    seen(world, "n4", None)
    world.pass_seconds(5)
    assert world.slurm.snapshot().nodes["n4"].reason == "bad fan"


def test_over_the_budget_of_drains_a_person_is_called(world: World) -> None:
    world = World(policy=Policy(mode=Mode.ACTIVE, drains_per_hour=1))
    world.nodes(4)
    world.pass_seconds(5)
    for node in ("n3", "n4"):
        seen(world, node, None)
        world.pass_seconds(5)
    assert kinds(world) == [ActionKind.DRAIN, ActionKind.NOTIFY]
    assert world.slurm.snapshot().nodes["n4"].state is NodeState.UP


def test_observing_drains_nothing_and_leaves_no_incident_behind() -> None:
    world = World(policy=Policy(mode=Mode.OBSERVE))
    world.nodes(2)
    world.pass_seconds(5)
    seen(world, "n2", None)
    world.pass_seconds(5)
    assert world.performed == []
    assert world.core.state.incidents == {}
    assert "not drained: mode observe" in story_of(world)


def test_a_drain_that_unicrond_died_before_is_made_up_for() -> None:
    world = World()
    world.nodes(4)
    world.pass_seconds(5)
    world.slurm.stop_controller()
    seen(world, "n4", None)
    world.pass_seconds(3)
    world.kill_unicrond()
    world.slurm.start_controller()
    world.pass_seconds(2)
    world.start_unicrond()
    world.pass_seconds(10)
    assert world.slurm.snapshot().nodes["n4"].reason.startswith("unicron: ")


@pytest.mark.parametrize("who", ["agent", "root"])
def test_a_programs_own_xid_does_nothing_but_explains_the_rank_that_dies_of_it(
    world: World, who: str
) -> None:
    job = running(world)
    by = job if who == "agent" else None
    seen(world, "n2", by, "illegal memory access", "SEV2", "NVRM: Xid (PCI:0000:10:00): 31")
    world.pass_seconds(3)
    assert world.performed == []
    world.agents.kill_rank(job, "n2", text="", signal=6)
    heals(world, job)
    assert world.run(job).assignment.nodes == ("n1", "n2", "n3")
    assert "ended by signal 6 (illegal memory access)" in story_of(world)


def test_what_hardware_did_to_an_earlier_generation_explains_nothing(world: World) -> None:
    job = running(world)
    seen(world, "n2", None, "illegal memory access", "SEV2", "NVRM: Xid (PCI:0000:10:00): 31")
    world.agents.kill_rank(job, "n1", text="", signal=9)
    heals(world, job)
    world.agents.kill_rank(job, "n2", text="", signal=6)
    heals(world, job, 3)
    assert "rank 1 on n2 ended by signal 6 (exited abnormally)" in story_of(world)


def test_an_out_of_memory_kill_seen_after_the_death_still_names_it(world: World) -> None:
    job = running(world)
    world.agents.kill_rank(job, "n2", text="", signal=9)
    world.tick()
    seen(world, "n2", job, "host out-of-memory kill", "SEV2", "the kernel killed 1 process")
    world.tick()
    (incident,) = world.core.state.incidents.values()
    assert incident.kind == "host out-of-memory kill"


def test_an_out_of_memory_kill_seen_after_the_run_healed_still_names_it(world: World) -> None:
    job = running(world)
    world.agents.kill_rank(job, "n2", text="", signal=9)
    heals(world, job)
    world.until(lambda: not world.core.state.incidents)
    seen(world, "n2", job, "host out-of-memory kill", "SEV2", "the kernel killed 1 process")
    world.tick()
    incident = world.core.state.resolved[job]
    assert (incident.kind, incident.state) == ("host out-of-memory kill", "resolved")
    assert world.core.state.incidents == {}


def test_hardware_seen_after_a_rank_died_of_it_moves_the_run_all_the_same(world: World) -> None:
    job = running(world, min_nodes=2)
    world.agents.kill_rank(job, "n2", text="CUDA error", signal=6)
    world.pass_seconds(0.25)
    seen(world, "n2", None, "GPU fell off the bus", text="NVRM: Xid (PCI:0000:10:00): 79")
    world.until(lambda: world.run(job).generation > 1 and world.run(job).state is RunState.RUNNING)
    assert "n2" not in world.run(job).assignment.nodes
    assert len(world.run(job).failures) <= 2


def test_what_may_be_anothers_doing_drains_no_node_and_moves_no_run(world: World) -> None:
    job = running(world, min_nodes=2)
    seen(world, "n2", None, "task hang", text="INFO: task python3:7 blocked for more than 120 s")
    world.pass_seconds(5)
    assert world.performed == []
    assert world.run(job).generation == 1


def test_words_that_make_no_sense_are_passed_over(world: World) -> None:
    job = running(world)
    seen(world, "n2", job, kind="gremlins")
    seen(world, "n2", job, severity="SEV9")
    world.pass_seconds(5)
    assert world.performed == []
    assert world.core.state.incidents == {}


def test_a_living_node_that_was_drained_is_given_back_once_the_run_goes_on(world: World) -> None:
    job = running(world, min_nodes=1)
    seen(world, "n2", None)
    heals(world, job)
    world.until(lambda: "n2" not in world.run(job).nodes, 10)
    assert kinds(world).count(ActionKind.SHRINK) == 1
    world.pass_seconds(60)
    assert world.run(job).generation == 2
    assert world.run(job).nodes == ("n1", "n3")
    assert world.core.state.incidents == {}


def test_two_living_nodes_are_given_back_and_no_other(world: World) -> None:
    job = running(world, 4, min_nodes=1)
    seen(world, "n2", None)
    seen(world, "n4", None)
    world.until(lambda: world.run(job).nodes == ("n1", "n3"), 30)
    world.pass_seconds(30)
    assert world.run(job).state is RunState.RUNNING
    assert world.run(job).assignment.nodes == ("n1", "n3")


def test_a_batch_host_that_was_drained_stays_with_its_job(world: World) -> None:
    job = running(world, min_nodes=1)
    seen(world, "n1", None)
    heals(world, job)
    world.pass_seconds(120)
    assert ActionKind.SHRINK not in kinds(world)
    assert world.run(job).assignment.nodes == ("n2", "n3")


def test_a_node_that_slurm_will_not_take_back_is_asked_for_once(world: World) -> None:
    def refuse(*_: object) -> None:
        raise Refused("Requested operation is presently disabled")

    job = running(world, min_nodes=1)
    world.slurm.shrink = refuse  # type: ignore[method-assign]
    seen(world, "n2", None)
    heals(world, job)
    world.pass_seconds(120)
    assert kinds(world).count(ActionKind.SHRINK) == 1
    assert "n2" in world.run(job).nodes


def test_a_node_that_a_run_moved_off_on_its_agents_word_is_kept(world: World) -> None:
    job = running(world, min_nodes=1)
    seen(world, "n2", job)
    heals(world, job)
    world.pass_seconds(30)
    assert "n2" in world.run(job).nodes
