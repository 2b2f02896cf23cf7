"""What the leader of a run does when unicrond gives no orders: given this view, exactly this."""

from __future__ import annotations

from dataclasses import replace

from unicrond.agent.leader import (
    Choice,
    Config,
    End,
    Peer,
    Requeue,
    Restart,
    Spawn,
    StartFirst,
    View,
    Wait,
    decide,
)
from unicrond.model.run import Phase

CONFIG = Config(lease_seconds=5.0, start_timeout_seconds=120.0, unattended_timeout_seconds=60.0)
NODES = ("n1", "n2", "n3")
RUNNING = Peer(age=0.2, phase=Phase.RUNNING, generation=4, ranks=2)
BROKEN = replace(RUNNING, phase=Phase.BROKEN, exit_code=7)
GONE = replace(RUNNING, age=9.0)
NEW = Peer(age=0.2, phase=Phase.IDLE, generation=0, ranks=2)
START = View(
    nodes=NODES,
    min_nodes=3,
    max_nodes=3,
    position=0,
    peers=dict.fromkeys(NODES, NEW),
    members=(),
    generation=0,
    uptime=1.0,
    quiet=0.0,
    restarted=False,
    spawned=frozenset(),
    spawn_age=1000.0,
    failed_starts=0,
    requeues_without_progress=0,
)
WHOLE = replace(START, members=NODES, generation=4, peers=dict.fromkeys(NODES, RUNNING))


def with_peer(view: View, node: str, peer: Peer) -> View:
    return replace(view, peers={**view.peers, node: peer})


def without(view: View, node: str) -> View:
    return replace(view, peers={n: p for n, p in view.peers.items() if n != node})


def choose(view: View, **changes: object) -> Choice:
    return decide(replace(view, **changes), CONFIG)  # type: ignore[arg-type]


# ---------------------------------------------------------------- the first generation


def test_the_first_generation_starts_once_all_agents_are_here() -> None:
    choice = choose(START)
    assert isinstance(choice, StartFirst) and choice.nodes == NODES


def test_only_the_leader_starts_it() -> None:
    assert isinstance(choose(START, position=1), Wait)


def test_it_waits_for_a_missing_agent() -> None:
    choice = choose(without(START, "n2"), uptime=119.0)
    assert isinstance(choice, Wait) and "2 of 3" in choice.reason


def test_after_the_time_out_it_starts_with_those_there_if_they_are_enough() -> None:
    choice = choose(without(START, "n1"), uptime=121.0, min_nodes=2)
    assert isinstance(choice, StartFirst) and choice.nodes == ("n2", "n3")


def test_after_the_time_out_too_few_agents_are_a_reason_to_requeue() -> None:
    choice = choose(with_peer(START, "n2", replace(NEW, age=6.0)), uptime=121.0)
    assert isinstance(choice, Requeue) and "3 are needed" in choice.reason


def test_no_more_nodes_are_used_than_the_user_wants() -> None:
    choice = choose(START, min_nodes=1, max_nodes=2)
    assert isinstance(choice, StartFirst) and choice.nodes == ("n1", "n2")


def test_a_node_that_cannot_be_cleared_is_not_tried_for_ever() -> None:
    assert isinstance(choose(START, failed_starts=2), StartFirst)
    assert isinstance(choose(START, failed_starts=3), Requeue)


def test_a_new_leader_that_does_not_know_the_members_yet_starts_nothing() -> None:
    assert isinstance(choose(with_peer(START, "n2", RUNNING), generation=4), Wait)


# ---------------------------------------------------------------- the end


def test_the_run_ends_when_every_rank_ended_with_0() -> None:
    done = replace(RUNNING, phase=Phase.DONE)
    choice = choose(WHOLE, peers=dict.fromkeys(NODES, done))
    assert isinstance(choice, End) and choice.exit_code == 0


def test_ranks_that_ended_early_are_no_end_and_no_trouble() -> None:
    view = with_peer(WHOLE, "n2", replace(RUNNING, phase=Phase.DONE))
    assert isinstance(choose(view, quiet=999.0), Wait)


def test_a_member_that_finished_and_then_fell_silent_has_finished() -> None:
    done = replace(RUNNING, phase=Phase.DONE)
    peers = {"n1": done, "n2": replace(done, age=60.0), "n3": done}
    assert isinstance(choose(WHOLE, peers=peers), End)


def test_finished_ranks_of_an_older_generation_do_not_end_the_run() -> None:
    old = replace(RUNNING, phase=Phase.DONE, generation=3)
    assert not isinstance(choose(WHOLE, peers=dict.fromkeys(NODES, old)), End)


def test_exit_code_93_is_obeyed_at_once() -> None:
    choice = choose(with_peer(WHOLE, "n3", replace(BROKEN, exit_code=93)))
    assert isinstance(choice, End) and choice.exit_code == 93


# ---------------------------------------------------------------- the dead-man rule


def test_a_broken_generation_first_waits_for_an_order() -> None:
    choice = choose(with_peer(WHOLE, "n2", BROKEN), quiet=59.0)
    assert isinstance(choice, Wait) and "59 of 60" in choice.reason


def test_without_an_order_the_same_members_are_restarted_once() -> None:
    view = with_peer(WHOLE, "n2", BROKEN)
    choice = choose(view, quiet=60.0)
    assert isinstance(choice, Restart) and choice.nodes == NODES
    assert isinstance(choose(view, quiet=60.0, restarted=True), Requeue)


def test_each_hub_is_more_patient_than_the_one_before_it() -> None:
    view = with_peer(WHOLE, "n2", BROKEN)
    assert isinstance(choose(view, quiet=100.0, position=1), Wait)
    assert isinstance(choose(view, quiet=120.0, position=1), Restart)


def test_a_silent_agent_is_started_again_and_waited_for() -> None:
    view = with_peer(WHOLE, "n2", GONE)
    choice = choose(view, quiet=60.0)
    assert isinstance(choice, Spawn) and choice.nodes == ("n2",)
    asked = {"quiet": 60.0, "spawned": frozenset({"n2"})}
    assert isinstance(choose(view, spawn_age=5.0, **asked), Wait)
    assert isinstance(choose(view, spawn_age=21.0, **asked), Requeue)


def test_once_the_agent_is_back_the_same_members_are_restarted() -> None:
    view = with_peer(WHOLE, "n2", NEW)
    assert isinstance(choose(view, quiet=60.0, spawned=frozenset({"n2"})), Restart)


def test_nothing_is_done_while_it_is_not_clear_who_is_gone() -> None:
    view = with_peer(with_peer(WHOLE, "n2", BROKEN), "n3", replace(RUNNING, age=3.0))
    assert isinstance(choose(view, quiet=999.0), Wait)


def test_requeueing_without_progress_ends_with_the_ranks_own_exit_code() -> None:
    view = with_peer(WHOLE, "n2", BROKEN)
    choice = choose(view, quiet=60.0, restarted=True, requeues_without_progress=2)
    assert isinstance(choice, End) and choice.exit_code == 7


def test_a_whole_generation_is_left_alone_for_ever() -> None:
    assert isinstance(choose(WHOLE, quiet=1e6), Wait)
