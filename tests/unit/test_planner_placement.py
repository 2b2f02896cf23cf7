"""Which nodes a run keeps, gives back and gets."""

import pytest

from planner.allocator import Infeasible
from planner.placement import Site, place


def test_a_run_keeps_what_it_holds_though_fewer_switches_were_possible() -> None:
    sites = [Site("a1", "a", 1), Site("b1", "b", 1), Site("c1", "c"), Site("c2", "c")]
    assert place(sites, {1: 2}) == {1: ("a1", "b1")}


def test_a_run_grows_on_its_own_switch_first_and_then_where_one_switch_is_enough() -> None:
    sites = [Site("a1", "a", 1), Site("a2", "a"), Site("b1", "b"), Site("c1", "c"), Site("c2", "c")]
    assert place(sites, {1: 2}) == {1: ("a1", "a2")}
    assert place(sites, {1: 4}) == {1: ("a1", "a2", "c1", "c2")}


def test_a_run_that_no_switch_can_hold_takes_the_largest_ones() -> None:
    sites = [
        Site(f"{switch}{i}", switch)
        for switch, n in (("a", 1), ("b", 2), ("c", 3))
        for i in range(n)
    ]
    assert place(sites, {1: 5}) == {1: ("c0", "c1", "c2", "b0", "b1")}


def test_nodes_of_which_no_switch_is_told_are_not_taken_for_neighbours() -> None:
    sites = [Site("a1", "a"), Site("a2", "a"), Site("x1"), Site("x2"), Site("x3")]
    assert place(sites, {1: 2}) == {1: ("a1", "a2")}
    assert place(sites, {1: 3}) == {1: ("a1", "a2", "x1")}
    assert place(sites[2:], {1: 2}) == {1: ("x1", "x2")}, "no topology: all on one"


def test_unusable_nodes_are_never_given_nor_kept() -> None:
    sites = [Site("a1", "a", 1, usable=False), Site("a2", "a", usable=False), Site("b1", "b")]
    assert place(sites, {1: 1}) == {1: ("b1",)}
    with pytest.raises(Infeasible, match="run 1 needs 2 more nodes, 1 usable"):
        place(sites, {1: 2})


def test_a_node_of_a_run_that_is_not_ours_counts_as_taken() -> None:
    with pytest.raises(Infeasible):
        place([Site("a1", "a", run_id=99)], {1: 1})


def test_lemons_come_last_whatever_switch_they_are_on() -> None:
    sites = [Site("a1", "a", 1), Site("a2", "a", lemon=True), Site("b1", "b")]
    assert place(sites, {1: 2}) == {1: ("a1", "b1")}
    assert place(sites, {1: 3}) == {1: ("a1", "b1", "a2")}


def test_a_run_gives_back_its_lemons_then_its_least_used_switch_but_never_a_pinned_node() -> None:
    sites = [
        Site("a1", "a", 1, pinned=True),
        Site("b1", "b", 1),
        Site("b2", "b", 1),
        Site("b3", "b", 1, lemon=True),
        Site("c1", "c", 1),
    ]
    assert place(sites, {1: 4}) == {1: ("a1", "b1", "b2", "c1")}
    assert place(sites, {1: 3}) == {1: ("a1", "b1", "b2")}
    assert place(sites, {1: 1}) == {1: ("a1",)}
    assert place(sites, {1: 0}) == {1: ()}


def test_what_one_run_gives_back_another_gets() -> None:
    sites = [Site("a1", "a", 1), Site("a2", "a", 1), Site("b1", "b", 2)]
    assert place(sites, {1: 1, 2: 2}) == {1: ("a1",), 2: ("b1", "a2")}
    assert place(sites, {1: 0, 2: 3}) == {1: (), 2: ("b1", "a1", "a2")}


def test_pinned_nodes_cannot_be_fewer() -> None:
    sites = [Site("a1", "a", 1, pinned=True), Site("a2", "a", 1, pinned=True)]
    with pytest.raises(Infeasible, match="run 1 cannot shrink to 1 nodes: 2 are pinned"):
        place(sites, {1: 1})
