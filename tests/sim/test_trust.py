"""Rules and their records: what the outcomes and the people say decides who may act."""

from __future__ import annotations

import pytest
from world import World, running

from detectors.trust import Record
from transition.membership import IN_PLACE
from unicrond.core.policy import Policy
from unicrond.model.cluster import NodeState
from unicrond.model.decision import ActionKind, Mode
from unicrond.model.events import ModeSet, ReviewGiven, SignalArrived
from unicrond.model.incident import Incident, IncidentState, Proof, Review, Signal, SignalKind
from unicrond.model.run import RunState

SYNTAX = "Traceback (most recent call last):\nSyntaxError: invalid syntax"


@pytest.fixture
def world() -> World:
    world = World()
    world.nodes(5)
    return world


def tell(world: World, what: SignalKind, job: int | None, node: str, text: str = "",
         rank: int | None = None, **data: object) -> None:  # fmt: skip
    generation = world.run(job).generation if job else 0
    at = world.clock.at
    signal = Signal(at, what, job, node, rank, generation=generation, text=text, data=data)
    world.tell(SignalArrived(signal))


def seem_to_hang(world: World, job: int) -> None:
    for rank, slot in enumerate(world.run(job).assignment.slots):
        tell(world, SignalKind.SLOW, job, slot.node, "", rank, process_state="S", seconds=900.0,
             usual_seconds=1.0, overdue=True)  # fmt: skip
    world.tick()


def see(world: World, node: str, job: int | None) -> None:
    tell(world, SignalKind.HARDWARE, job, node, "gpu 0: 1 uncorrected ECC errors", source="nvml",
         kind="ECC error", severity="SEV1", count=1)  # fmt: skip
    world.tick()


def heals(world: World, job: int, generation: int = 2) -> None:
    world.until(
        lambda: world.run(job).generation == generation and world.run(job).state is RunState.RUNNING
    )


def last_incident(world: World) -> Incident:
    return world.core.state.incidents[world.core.state.next_incident_id - 1]


def proof(world: World, incident: int = 1) -> Proof:
    review = world.core.state.ledger.of(incident)
    assert review is not None
    return review.proof


def judge(world: World, incident: int, proof: Proof, who: str = "root") -> None:
    world.tell(ReviewGiven(world.clock.at, incident, proof, who, who == "root", "looked at it"))
    world.tick()


def refuted(world: World, rule: str, times: int) -> None:
    """Admins have refuted so many incidents of this rule before."""
    for n in range(times):
        world.core.state.ledger.put(Review(-1 - n, rule, Proof.REFUTED, 0.0, by="root"))


def decisions(world: World) -> list[tuple[str, bool, str]]:
    return [(d.choice, d.acts, d.reason) for d in world.store.decisions]


def story(world: World) -> str:
    return "\n".join(entry.text for entry in world.store.journal)


# outcomes
def test_a_rank_that_ended_confirms_the_rule_that_told_of_it(world: World) -> None:
    job = running(world)
    world.agents.kill_rank(job, "n2")
    heals(world, job)
    assert world.core.state.ledger.whole("exit.sigkill") == Record(confirmed=1)


def test_a_node_that_slurm_finds_down_confirms_its_loss(world: World) -> None:
    job = running(world, min_nodes=2)
    world.cut("n2")
    world.until(lambda: world.run(job).state is RunState.HEALING)
    assert (last_incident(world).rule, proof(world)) == ("silence.lost", Proof.UNDECIDED)
    world.until(lambda: world.run(job).loss_of("n2").state.settled)
    assert proof(world) is Proof.CONFIRMED


def test_a_node_that_is_back_before_its_lease_was_over_refutes_its_loss(world: World) -> None:
    job = running(world, min_nodes=2)
    world.cut("n2")
    world.until(lambda: world.run(job).state is RunState.HEALING)
    world.restore("n2")
    heals(world, job)
    assert proof(world) is Proof.REFUTED


def test_a_hang_that_trains_on_is_refuted() -> None:
    world = World(policy=Policy(mode=Mode.OBSERVE))
    world.nodes(3)
    job = running(world)
    seem_to_hang(world, job)
    assert proof(world) is Proof.UNDECIDED
    world.pass_seconds(4)
    assert proof(world) is Proof.REFUTED
    assert "hang.overdue refuted: train step" in story(world)


def test_a_hang_whose_ranks_die_before_anything_was_ordered_is_confirmed() -> None:
    world = World(policy=Policy(mode=Mode.OBSERVE))
    world.nodes(3)
    job = running(world)
    seem_to_hang(world, job)
    world.agents.kill_rank(job, "n2", text="Watchdog caught collective operation timeout")
    world.tick()
    assert proof(world) is Proof.CONFIRMED


def test_an_exception_is_confirmed_once_its_rank_has_ended_of_it(world: World) -> None:
    job = running(world)
    boom = "Traceback (most recent call last):\nMyOwnOddity: boom"
    tell(world, SignalKind.EXCEPTION, job, "n2", boom, 1)
    world.tick()
    assert proof(world) is Proof.UNDECIDED
    tell(world, SignalKind.RANK_EXITED, job, "n2", "", 1, exit_code=1, signal=None, stderr=boom)
    world.tick()
    assert proof(world) is Proof.CONFIRMED


def test_hardware_that_may_be_broken_while_training_goes_on_stays_undecided(world: World) -> None:
    job = running(world, min_nodes=2)
    see(world, "n2", job)
    heals(world, job)
    world.pass_seconds(60)
    assert world.core.state.ledger.whole("nvml.ecc") == Record(undecided=1)


def test_a_node_that_slurm_took_is_a_fact(world: World) -> None:
    job = running(world, min_nodes=2)
    world.slurm.shrink(job, ["n1", "n2"])
    heals(world, job)
    assert world.core.state.ledger.whole("slurm.took") == Record(confirmed=1)


# people
def test_the_last_word_of_a_person_counts_whatever_the_outcome(world: World) -> None:
    job = running(world)
    world.agents.kill_rank(job, "n2")
    heals(world, job)
    judge(world, 1, Proof.REFUTED, "alice")
    assert proof(world) is Proof.REFUTED
    assert "exit.sigkill refuted by alice: looked at it" in story(world)
    judge(world, 1, Proof.CONFIRMED)
    assert proof(world) is Proof.CONFIRMED


def test_what_was_said_outlives_unicrond(world: World) -> None:
    job = running(world)
    world.agents.kill_rank(job, "n2")
    heals(world, job)
    judge(world, 1, Proof.REFUTED)
    world.kill_unicrond()
    world.start_unicrond()
    assert world.core.state.ledger.whole("exit.sigkill") == Record(refuted=1)


def test_a_word_on_an_incident_that_nobody_remembers_is_told_and_changes_nothing(
    world: World,
) -> None:
    judge(world, 77, Proof.REFUTED)
    assert "too old to count" in story(world)


# below the bar
def test_a_rule_below_its_bar_is_recorded_and_orders_nothing(world: World) -> None:
    job = running(world)
    refuted(world, "hang.overdue", 2)
    before, generation = len(world.performed), world.run(job).generation
    seem_to_hang(world, job)
    world.pass_seconds(3)
    assert len(world.performed) == before
    assert (world.run(job).generation, world.run(job).state) == (generation, RunState.RUNNING)
    choice, acts, reason = decisions(world)[-1]
    assert (choice, acts) == ("observe", False)
    assert reason.endswith(
        "rule hang.overdue is below its bar (0 of 2 confirmed, needs 0.60): only observed"
    )
    assert last_incident(world).rule == "hang.overdue"


def test_what_is_only_observed_is_decided_once(world: World) -> None:
    job = running(world)
    refuted(world, "hang.overdue", 2)
    for _ in range(3):
        seem_to_hang(world, job)
    assert [choice for choice, _, _ in decisions(world)].count("observe") == 1
    assert last_incident(world).count == 3


def test_a_rank_that_ends_is_healed_although_its_hang_was_only_observed(world: World) -> None:
    job = running(world)
    refuted(world, "hang.overdue", 2)
    generation = world.run(job).generation
    seem_to_hang(world, job)
    world.agents.kill_rank(job, "n2")
    heals(world, job, generation + 1)
    assert proof(world) is Proof.CONFIRMED


def test_an_only_observed_hang_is_taken_up_by_no_change_of_mode(world: World) -> None:
    job = running(world)
    refuted(world, "hang.overdue", 2)
    seem_to_hang(world, job)
    before = len(world.performed)
    world.tell(ModeSet(world.clock.at, Mode.ACTIVE, "root"))
    world.pass_seconds(2)
    assert len(world.performed) == before


def test_a_rule_acts_again_once_people_confirmed_it(world: World) -> None:
    job = running(world)
    refuted(world, "hang.overdue", 2)
    generation = world.run(job).generation
    judge(world, -1, Proof.CONFIRMED)
    seem_to_hang(world, job)
    heals(world, job, generation + 1)


def test_hardware_that_is_not_believed_moves_no_run_and_drains_nothing(world: World) -> None:
    job = running(world, 2, min_nodes=1)
    refuted(world, "nvml.ecc", 3)
    before, generation = len(world.performed), world.run(job).generation
    node = world.run(job).assignment.nodes[0]
    see(world, node, None)
    see(world, "n5", None)
    world.pass_seconds(5)
    assert len(world.performed) == before
    assert world.run(job).generation == generation
    assert world.slurm.snapshot().nodes["n5"].state is NodeState.UP
    assert "rule nvml.ecc is below its bar (0 of 3 confirmed, needs 0.75)" in story(world)
    assert all(i.run_id == job for i in world.core.state.incidents.values())


def test_what_was_only_observed_of_a_device_is_over_after_a_while(world: World) -> None:
    job = running(world, 2, min_nodes=1)
    refuted(world, "nvml.ecc", 3)
    see(world, world.run(job).assignment.nodes[0], job)
    world.agents.jobs[job].step = -1000  # it reports nothing new
    world.pass_seconds(30)
    assert last_incident(world).state is IncidentState.OPEN
    world.pass_seconds(31)
    assert world.core.state.incidents == {}
    assert proof(world) is Proof.UNDECIDED


def test_a_users_agents_silence_no_rule_for_the_runs_of_others() -> None:
    world = World(policy=Policy(mode=Mode.OBSERVE))
    world.nodes(4)
    mine, other = running(world, 2), running(world, 2, user="bob", uid=1002)
    for _ in range(5):
        seem_to_hang(world, mine)
        world.pass_seconds(70)
    assert world.core.state.ledger.whole("hang.overdue") == Record(refuted=5)
    world.tell(ModeSet(world.clock.at, Mode.ACTIVE, "root"))
    world.tick()
    seem_to_hang(world, mine)
    seem_to_hang(world, other)
    heals(world, other)
    assert world.run(mine).generation == 1


# no restart helps
def fail(world: World, job: int, text: str = SYNTAX) -> None:
    world.agents.kill_rank(job, world.run(job).assignment.nodes[0], text=text, signal=6)


def test_a_failure_that_recurs_ends_a_run_that_came_no_further_at_once(world: World) -> None:
    job = world.submit(3)
    world.until(lambda: job in world.agents.jobs)
    world.agents.jobs[job].step = -1000
    world.until(lambda: job in world.core.state.runs and world.run(job).state is RunState.RUNNING)
    fail(world, job)
    world.until(lambda: world.run(job).state is RunState.FAILED)
    assert world.run(job).finished_code == 93
    assert "a restart alone would fail the same: mend the program (SyntaxError: invalid" in (
        world.run(job).end_reason
    )
    assert {a.kind for a in world.performed} == {ActionKind.END_RUN}


def test_one_that_progressed_restarts_once_and_ends_when_it_fails_the_same(world: World) -> None:
    job = running(world)
    fail(world, job)
    heals(world, job)
    world.agents.jobs[job].step = -1000  # it comes back to where it failed
    fail(world, job)
    world.until(lambda: world.run(job).state is RunState.FAILED)
    assert world.run(job).finished_code == 93
    assert len(world.run(job).failures) == 1
    assert world.core.state.ledger.whole("python.bug") == Record(confirmed=2)


def test_a_restart_that_helped_refutes_that_none_would(world: World) -> None:
    job = running(world)
    fail(world, job)
    heals(world, job)
    world.pass_seconds(5)
    assert world.run(job).state is RunState.RUNNING
    assert world.core.state.ledger.whole("python.bug") == Record(refuted=1)


def test_a_rule_that_is_not_believed_ends_no_run(world: World) -> None:
    job = running(world)
    for generation in (2, 3):
        fail(world, job)
        heals(world, job, generation)
        world.pass_seconds(5)
    world.agents.jobs[job].step = -1000
    fail(world, job)
    heals(world, job, 4)
    fail(world, job)
    world.until(lambda: world.run(job).restarts == 1 and world.run(job).state is RunState.RUNNING)
    assert "below its bar (0 of 2 confirmed, needs 0.60): restarted only" in story(world)


# severities
def test_another_try_in_place_is_told_to_be_carried_out_as_a_restart(world: World) -> None:
    job = running(world)
    fail(world, job, "RuntimeError: ncclSystemError: Connection refused")
    world.until(lambda: bool(world.core.state.incidents))
    assert last_incident(world).severity == "SEV3"
    assert last_incident(world).state is IncidentState.HEALING
    assert IN_PLACE in decisions(world)[-1][2]
    heals(world, job)
    assert world.run(job).assignment.nodes == ("n1", "n2", "n3")
