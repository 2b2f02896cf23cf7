"""When an agent has to stop its ranks: lease, authority, and their reasons."""

from __future__ import annotations

from unicrond.agent.lease import (
    NEVER,
    LeaseConfig,
    Report,
    authority_age,
    authority_seconds,
    why_stop,
)

CONFIG = LeaseConfig(lease_seconds=5.0, authority_seconds=290.0)


def reason(
    ages: dict[str, float],
    daemon_age: float = NEVER,
    authority: float = 0.0,
    config: LeaseConfig = CONFIG,
) -> str:
    return why_stop(("n1", "n2", "n3"), ages, daemon_age, authority, config)


def test_ranks_go_on_while_every_member_is_heard_though_unicrond_is_away() -> None:
    assert reason({"n1": 0.0, "n2": 4.9, "n3": 1.0}) == ""


def test_ranks_go_on_while_unicrond_is_heard_though_a_member_is_silent() -> None:
    assert reason({"n1": 0.0, "n2": 60.0}, daemon_age=4.9) == ""


def test_ranks_stop_when_neither_unicrond_nor_every_member_is_heard() -> None:
    assert "n2" in reason({"n1": 0.0, "n2": 5.1, "n3": 1.0}, daemon_age=5.1)


def test_a_member_never_heard_of_counts_as_silent() -> None:
    assert "n3" in reason({"n1": 0.0, "n2": 1.0})


def test_a_node_outside_the_generation_does_not_matter() -> None:
    assert reason({"n1": 0.0, "n2": 1.0, "n3": 1.0, "n9": 500.0}) == ""


def test_ranks_stop_when_slurm_may_have_given_the_nodes_up() -> None:
    heard = {"n1": 0.0, "n2": 0.1, "n3": 0.1}
    assert reason(heard, authority=290.0) == ""
    assert "slurmctld" in reason(heard, authority=290.1)


def test_the_same_holds_for_a_run_on_one_node() -> None:
    assert "slurmctld" in why_stop(("n1",), {"n1": 0.0}, NEVER, 291.0, CONFIG)


def test_where_slurm_never_gives_nodes_up_its_silence_stops_nothing() -> None:
    heard = {"n1": 0.0, "n2": 0.1, "n3": 0.1}
    assert reason(heard, authority=1e6, config=LeaseConfig(5.0, 0.0)) == ""


def test_an_answer_to_any_agent_counts_for_all_and_grows_older_on_its_way() -> None:
    reports = [Report(2.0, daemon_age=NEVER, slurm_age=10.0), Report(0.0, 40.0, 50.0)]
    assert authority_age(100.0, 200.0, reports) == 12.0
    assert authority_age(3.0, 200.0, reports) == 3.0
    assert authority_age(100.0, 200.0, []) == 100.0


def test_a_short_time_out_of_slurm_leaves_half_of_itself() -> None:
    assert authority_seconds(300.0, 10.0) == 290.0
    assert authority_seconds(12.0, 10.0) == 6.0
    assert authority_seconds(0.0, 10.0) == 0.0


def test_many_silent_members_are_not_all_listed() -> None:
    nodes = tuple(f"n{index}" for index in range(9))
    assert "6 more" in why_stop(nodes, {}, NEVER, 0.0, CONFIG)
