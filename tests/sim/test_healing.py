"""Short stories: given these faults at these times, expect exactly this."""

from __future__ import annotations

import pytest
from world import World, kinds, running

from db.memory import MemoryStore
from unicrond.core.policy import Policy
from unicrond.hands import ORDERS
from unicrond.model.cluster import JobState, NodeState
from unicrond.model.decision import ActionKind, Mode, Outcome, OutcomeState
from unicrond.model.events import AgentLeft, OutcomeArrived, SignalArrived
from unicrond.model.incident import Signal, SignalKind
from unicrond.model.run import LossState, RunState


@pytest.fixture
def world() -> World:
    world = World()
    world.nodes(6)
    return world


def test_a_run_without_trouble_completes_and_nothing_was_done(world: World) -> None:
    job = running(world, steps=20)
    world.until(lambda: world.run(job).state is RunState.COMPLETED)
    assert world.performed == []


def test_a_killed_rank_restarts_all_ranks_on_the_same_nodes(world: World) -> None:
    job = running(world)
    before = world.run(job)
    world.agents.kill_rank(job, "n2")
    took = world.until(
        lambda: (
            world.run(job).generation > before.generation
            and world.run(job).state is RunState.RUNNING
        )
    )
    assert world.run(job).assignment.nodes == before.assignment.nodes
    assert took < 3
    assert isinstance(world.store, MemoryStore)
    end = next(e.text for e in reversed(world.store.journal) if e.kind == "note")
    assert end.startswith("ranks run again on 3 nodes as generation 2, ")
    assert ActionKind.DRAIN not in kinds(world)


@pytest.mark.parametrize("node", ["n1", "n3"])
def test_a_lost_node_leaves_and_the_run_goes_on_after_the_lease(world: World, node: str) -> None:
    job = running(world, min_nodes=2)
    world.cut(node)
    took = world.until(
        lambda: world.run(job).generation == 2 and world.run(job).state is RunState.RUNNING
    )
    assert world.core.state.policy.lease_seconds < took < 10
    assert node not in world.run(job).assignment.nodes
    world.until(lambda: world.slurm.snapshot().nodes[node].reason.startswith("unicron: "))
    world.until(lambda: world.run(job).loss_of(node).state.settled)
    assert world.run(job).loss_of(node).state is LossState.RELEASED


def test_a_node_that_only_unicrond_cannot_reach_is_not_lost(world: World) -> None:
    job = running(world, min_nodes=2)
    world.agents.cut_from_unicrond.add("n2")
    world.pass_seconds(60)
    assert world.run(job).generation == 1
    assert world.performed == []


def test_a_node_that_was_lost_before_unicrond_ever_heard_it_is_missed_too(world: World) -> None:
    world.agents.cut_from_unicrond.add("n2")
    job = world.submit(3, min_nodes=2)
    world.until(lambda: job in world.core.state.runs and world.run(job).generation == 1)
    world.pass_seconds(20)
    assert world.performed == [], "its peers hear it"
    world.cut("n2")
    world.until(lambda: world.run(job).generation == 2 and world.run(job).state is RunState.RUNNING)
    assert world.run(job).assignment.nodes == ("n1", "n3")


def test_a_run_that_its_user_cancels_stays_cancelled_whatever_falls_with_it(world: World) -> None:
    """SIGTERM comes to one node a moment before the others, whose ranks then miss it."""
    job = running(world)
    agent = world.run(job).agents["n1"].agent
    world.tell(AgentLeft(world.clock.at, job, "n1", agent, True, 143))
    world.agents.kill_rank(job, "n2", text="Connection reset by peer")
    world.slurm.scancel(job)
    world.until(lambda: world.run(job).state is RunState.CANCELLED)
    world.pass_seconds(200)
    assert world.run(job).restarts == 0
    assert world.slurm.snapshot().allocations[job].state is JobState.CANCELLED


def test_an_agent_speaks_for_its_own_orders_alone(world: World) -> None:
    """Keys are easy to guess; an agent is a user's process."""
    job, other = running(world, min_nodes=2), running(world, user="bob", uid=1002)
    world.cut("n2")
    world.until(lambda: world.run(job).state is RunState.HEALING)
    pending = [action for action, _ in world.core.state.pending.values() if action.node == "n2"]
    assert ActionKind.STOP_RANKS in {action.kind for action in pending}
    for action in pending:
        lie = Outcome(action.key, world.clock.at, OutcomeState.DONE, data={"passed": True})
        for liar in ((other, "n4"), (other, "n2"), (job, "n1")):
            world.tell(OutcomeArrived(lie, *liar))
    world.tick()
    assert all(a.key in world.core.state.pending for a in pending if a.kind in ORDERS)
    world.until(lambda: world.slurm.snapshot().nodes["n2"].reason.startswith("unicron: "))


def test_an_agent_has_no_say_in_what_is_done_with_slurm(world: World) -> None:
    job = running(world)
    world.slurm.stop_controller()
    world.cut("n3")
    world.until(lambda: ActionKind.DRAIN in kinds(world))
    drain = next(a for a in world.performed if a.kind is ActionKind.DRAIN)
    lie = Outcome(drain.key, world.clock.at, OutcomeState.DONE)
    world.tell(OutcomeArrived(lie, job, "n3"))
    world.pass_seconds(1)
    assert drain.key in world.core.state.pending


def test_many_silent_nodes_of_several_runs_decide_nothing(world: World) -> None:
    jobs = [running(world, min_nodes=1), running(world, min_nodes=1)]
    for node in ("n2", "n3", "n4", "n5"):
        world.cut(node)
    world.pass_seconds(30)
    assert all(world.run(job).generation == 1 for job in jobs)
    assert set(kinds(world)) == {ActionKind.NOTIFY}


def test_a_node_back_before_the_next_generation_stays_in_it(world: World) -> None:
    job = running(world, min_nodes=2)
    world.cut("n2")
    world.pass_seconds(4.5)
    world.restore("n2")
    world.until(lambda: world.run(job).generation == 2 and world.run(job).state is RunState.RUNNING)
    assert len(world.run(job).assignment.nodes) == 3
    world.pass_seconds(120)
    assert world.run(job).loss_of("n2").state is LossState.RETURNED
    assert world.slurm.snapshot().nodes["n2"].state is NodeState.UP


def test_a_dead_agent_is_started_again_and_its_node_is_not_drained(world: World) -> None:
    job = running(world)
    world.agents.kill_agent(job, "n3")
    took = world.until(
        lambda: world.run(job).generation == 2 and world.run(job).state is RunState.RUNNING
    )
    assert took < 10
    assert len(world.run(job).assignment.nodes) == 3
    assert ActionKind.DRAIN not in kinds(world)


def test_a_dead_agent_is_started_again_although_its_peers_speak_of_it_first(world: World) -> None:
    job = running(world)
    world.agents.kill_agent(job, "n3")
    world.agents.kill_rank(job, "n1", text="Connection closed by peer", signal=None)
    world.until(lambda: world.run(job).generation == 2 and world.run(job).state is RunState.RUNNING)
    assert len(world.run(job).assignment.nodes) == 3
    assert ActionKind.SPAWN_AGENT in kinds(world)
    assert ActionKind.REQUEUE not in kinds(world)


def test_no_progress_over_and_over_moves_the_run_and_then_ends_it_with_93(world: World) -> None:
    job = running(world, 3)
    for _ in range(6):
        if world.run(job).state.ended:
            break
        fail_on(world, job, world.run(job).assignment.nodes[1], 1)
        world.until(lambda: world.run(job).state in (RunState.RUNNING, RunState.FAILED))
    assert world.run(job).state is RunState.FAILED
    assert world.run(job).finished_code == 93
    assert "brought nothing" in world.run(job).end_reason
    assert len(world.run(job).failures) == 3


def test_observing_decides_and_leaves_the_healing_to_the_agents() -> None:
    world = World(policy=Policy(mode=Mode.OBSERVE))
    world.nodes(3)
    job = running(world)
    world.agents.kill_rank(job, "n2")
    took = world.until(
        lambda: world.run(job).generation == 2 and world.run(job).state is RunState.RUNNING
    )
    assert 60 <= took < 65
    assert world.performed == []
    assert world.core.state.incidents == {}


def test_a_node_drained_by_a_person_is_left_alone(world: World) -> None:
    job = running(world, min_nodes=2)
    world.cut("n2")
    world.until(lambda: world.run(job).healing is not None)
    world.slurm.drain_by_person("n2", "bad fan")
    world.until(lambda: world.run(job).generation == 2)
    world.until(lambda: world.run(job).loss_of("n2").state.settled)
    assert world.slurm.snapshot().nodes["n2"].reason == "bad fan"


def test_slurmctld_away_for_minutes_delays_the_drain_and_not_the_healing(world: World) -> None:
    job = running(world, min_nodes=2)
    world.slurm.stop_controller()
    world.cut("n2")
    took = world.until(
        lambda: world.run(job).generation == 2 and world.run(job).state is RunState.RUNNING
    )
    assert took < 10
    world.pass_seconds(60)
    world.slurm.start_controller()
    world.until(lambda: world.run(job).loss_of("n2").state.settled)
    assert world.slurm.snapshot().nodes["n2"].reason.startswith("unicron: ")


def test_unicrond_killed_in_the_middle_of_a_heal_goes_on_with_it(world: World) -> None:
    job = running(world, min_nodes=2)
    world.cut("n2")
    world.pass_seconds(4)
    assert world.run(job).state is RunState.HEALING
    world.kill_unicrond()
    world.pass_seconds(2)
    world.start_unicrond()
    took = world.until(
        lambda: world.run(job).generation == 2 and world.run(job).state is RunState.RUNNING
    )
    assert took < 15


def fail_on(world: World, job: int, node: str, times: int) -> None:
    """It always comes back to the same train step."""
    for _ in range(times):
        world.agents.jobs[job].step = -1000
        world.agents.kill_rank(job, node, text="Segmentation fault", signal=11)
        world.pass_seconds(10)


def test_one_failing_program_moves_its_run_and_drains_nothing(world: World) -> None:
    job = running(world, min_nodes=2)
    fail_on(world, job, "n2", 1)
    assert world.run(job).shunned == ()
    fail_on(world, job, "n2", 1)
    assert world.run(job).shunned == ("n2",)
    assert world.run(job).assignment.nodes == ("n1", "n3")
    assert ActionKind.DRAIN not in kinds(world)


def test_a_node_where_runs_of_two_users_fail_is_drained() -> None:
    world = World()
    world.nodes(3)
    first = running(world, min_nodes=2)
    fail_on(world, first, "n2", 3)
    world.agents.jobs[first].step = world.agents.jobs[first].steps
    world.until(lambda: world.run(first).state is RunState.COMPLETED)
    assert ActionKind.DRAIN not in kinds(world)
    second = running(world, min_nodes=2, user="bob", uid=1002)
    fail_on(world, second, "n2", 3)
    assert world.slurm.snapshot().nodes["n2"].reason.startswith("unicron: ")


def test_an_unreachable_store_stops_every_action_and_loses_nothing() -> None:
    store = MemoryStore()
    world = World(store=store)
    world.nodes(4)
    job = running(world)
    store.fault = "database or disk is full"
    world.agents.kill_rank(job, "n2")
    world.pass_seconds(30)
    assert world.performed == []
    store.fault = ""
    world.until(lambda: world.run(job).state is RunState.RUNNING)
    assert world.run(job).generation == 2
    assert "n2 ended by signal 9" in "".join(entry.text for entry in store.journal)


def told(job: int, world: World, kind: SignalKind, rank: int, **data: object) -> None:
    """A sensor of the agent on rank's node speaks."""
    text = str(data.pop("text", ""))
    signal = Signal(
        world.clock.at,
        kind,
        job,
        f"n{rank + 1}",
        rank,
        generation=world.run(job).generation,
        text=text,
        data=data,
    )
    world.tell(SignalArrived(signal))


def test_a_stopped_rank_is_named_and_its_run_restarts(world: World) -> None:
    job = running(world)
    told(job, world, SignalKind.SLOW, 0, process_state="S", seconds=0.9, usual_seconds=0.2)
    world.pass_seconds(1)
    assert world.performed == []
    told(job, world, SignalKind.SLOW, 1, process_state="T", seconds=0.9, usual_seconds=0.2)
    world.until(
        lambda: world.run(job).generation == 2 and world.run(job).state is RunState.RUNNING,
        within_seconds=5,
    )
    assert "rank 1 on n2 is stopped" in "".join(entry.text for entry in world.store.journal)


def test_the_story_of_a_hang_says_what_the_other_ranks_wait_for(world: World) -> None:
    job = running(world)
    slow = {"seconds": 0.9, "usual_seconds": 0.2}
    waits = {
        **slow,
        "process_state": "S",
        "collective": "in collective 8, all_reduce at train.py:9",
    }
    told(job, world, SignalKind.SLOW, 0, **waits)
    past = "past collective 7, all_reduce at train.py:9"
    told(job, world, SignalKind.SLOW, 1, process_state="T", collective=past, **slow)
    world.pass_seconds(0.25)
    told(job, world, SignalKind.SLOW, 2, **waits)  # is heard while it is healed
    told(job, world, SignalKind.SLOW, 2, **waits)
    world.until(lambda: world.run(job).generation == 2, within_seconds=5)
    story = [e.text for e in world.store.journal if e.incident_id is not None]
    assert any("rank 1 on n2 is stopped" in text and past in text for text in story)
    assert [text for text in story if "waits" in text] == [
        f"rank {rank} on n{rank + 1} waits for 0.9 s: in collective 8, all_reduce at train.py:9"
        for rank in (0, 2)
    ]


def test_a_suspicion_is_told_at_once_and_once_a_minute(world: World) -> None:
    job = running(world)
    for _ in range(5):
        told(
            job, world, SignalKind.SLOW, 1, process_state="S", seconds=0.9, usual_seconds=0.2,
            where="train.py:7 in load",
        )  # fmt: skip
        world.pass_seconds(14)
    lines = [entry.text for entry in world.store.journal if entry.text.endswith("a suspicion")]
    assert lines == [
        "rank 1 on n2 has been in one iteration for 0.9 s, usually 0.2 s, at train.py:7 in load: "
        "a suspicion"
    ]
    assert world.performed == []


def test_whoever_seems_to_hold_up_the_others_is_told_long_before_it_is_overdue(
    world: World,
) -> None:
    job = running(world)
    waits, loads = "/x/torch/distributed/distributed_c10d.py", "train.py:7 in load"
    for _ in range(3):
        for rank, where in enumerate((waits, loads, waits)):
            told(
                job, world, SignalKind.SLOW, rank, process_state="S", seconds=2.0,
                usual_seconds=0.2, where=where,
            )  # fmt: skip
        world.pass_seconds(1)
    lines = [e.text for e in world.store.journal if "while the others wait" in e.text]
    assert lines == [
        "rank 1 on n2 is at train.py:7 in load, while the others wait for it: no train step for "
        "2.0 s, 0.20 s is usual: a suspicion"
    ]
    assert world.performed == []


def test_slow_iterations_that_end_well_change_nothing(world: World) -> None:
    job = running(world)
    for _ in range(10):
        for rank in range(3):
            told(
                job, world, SignalKind.SLOW, rank, process_state="R", seconds=4.0, usual_seconds=0.2
            )
        world.pass_seconds(2)
    assert world.performed == []


def test_an_exception_is_healed_before_its_rank_has_ended(world: World) -> None:
    job = running(world)
    told(job, world, SignalKind.EXCEPTION, 2, text="Traceback ...\nRuntimeError: boom")
    world.until(
        lambda: world.run(job).generation == 2 and world.run(job).state is RunState.RUNNING,
        within_seconds=5,
    )
    assert "raised RuntimeError: boom" in "".join(entry.text for entry in world.store.journal)


RESET = "Traceback ...\nRuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer"


@pytest.mark.parametrize("skew", [-1.0, 0.0, 1.0])
def test_the_culprit_is_the_root_although_its_victims_speak_first(
    world: World, skew: float
) -> None:
    job = running(world)
    told(job, world, SignalKind.EXCEPTION, 0, text=RESET)
    world.tick()
    incident = world.core.state.incidents[1]
    assert incident.root_rank == 0, "nobody else is known yet"
    told(job, world, SignalKind.EXCEPTION, 2, text=RESET)
    world.clock.at += skew
    told(job, world, SignalKind.RANK_EXITED, 1, exit_code=0, signal=9)
    world.clock.at -= skew
    told(job, world, SignalKind.RANK_EXITED, 2, exit_code=1, signal=0, stderr=RESET)
    world.tick()
    incident = world.core.state.incidents[1]
    assert (incident.root_rank, incident.root_node, incident.severity) == (1, "n2", "SEV2")
    assert (world.run(job).last_root, world.core.state.next_incident_id) == ("n2", 2)
    assert "rank 1 on n2 ended by signal 9" in incident.summary


def test_a_lost_node_is_the_root_although_its_victims_speak_first(world: World) -> None:
    job = running(world, min_nodes=2)
    world.cut("n2")
    told(job, world, SignalKind.EXCEPTION, 0, text=RESET)
    world.until(lambda: world.run(job).generation == 2, within_seconds=30)
    incident = world.core.state.incidents[1]
    assert (incident.root_node, incident.severity, incident.root_rank) == ("n2", "SEV1", None)


def test_a_rank_that_ends_early_is_no_failure_until_others_fail_for_it(world: World) -> None:
    job = running(world)
    told(job, world, SignalKind.RANK_EXITED, 1, exit_code=0, signal=0)
    world.pass_seconds(5)
    assert world.performed == []
    told(
        job,
        world,
        SignalKind.RANK_EXITED,
        2,
        exit_code=1,
        signal=0,
        stderr="RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer",
    )
    world.until(lambda: world.run(job).generation == 2)
    assert "rank 1 on n2 ended with 0 while others ran on" in story_of(world)


def test_one_agent_told_to_end_alone_is_started_again(world: World) -> None:
    job = running(world)
    agent = world.agents.jobs[job].agents["n2"].agent
    world.agents.jobs[job].agents["n2"].alive = False
    world.tell(AgentLeft(world.clock.at, job, "n2", agent, True, 143))
    world.until(
        lambda: world.run(job).generation == 2 and world.run(job).state is RunState.RUNNING,
        within_seconds=30,
    )


def story_of(world: World) -> str:
    return "".join(entry.text for entry in world.store.journal)
