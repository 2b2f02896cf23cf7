"""Placement, whatever the cluster looks like."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from planner.allocator import Infeasible
from planner.placement import Site, place

SITE = st.builds(
    Site,
    name=st.just(""),
    switch=st.sampled_from("abc"),
    run_id=st.sampled_from([None, None, 1, 2]),
    usable=st.sampled_from([True, True, True, False]),
    lemon=st.sampled_from([False, False, False, True]),
)
CLUSTER = st.lists(SITE, max_size=9).map(
    lambda sites: [
        Site(f"n{i}", s.switch, s.run_id, False, s.usable, s.lemon) for i, s in enumerate(sites)
    ]
)
COUNTS = st.fixed_dictionaries({1: st.integers(0, 5), 2: st.integers(0, 5)})


@given(CLUSTER, COUNTS)
def test_every_run_gets_its_number_of_usable_nodes_and_none_twice(
    sites: list[Site], counts: dict[int, int]
) -> None:
    usable = {site.name: site for site in sites if site.usable}
    try:
        placed = place(sites, counts)
    except Infeasible:
        assert sum(counts.values()) > len(usable)
        return
    given = [name for nodes in placed.values() for name in nodes]
    assert {run: len(nodes) for run, nodes in placed.items()} == counts
    assert len(given) == len(set(given))
    assert set(given) <= set(usable)
    for run, nodes in placed.items():
        held = {name for name, site in usable.items() if site.run_id == run}
        assert held <= set(nodes) or set(nodes) <= held, "nothing new before all that it holds"


@given(CLUSTER, st.integers(0, 5))
def test_a_single_run_is_on_as_few_switches_as_what_it_keeps_and_lemons_allow(
    sites: list[Site], count: int
) -> None:
    sites = [site for site in sites if site.usable and site.run_id != 2]
    if count > len(sites):
        return
    names = set(place(sites, {1: count})[1])

    def rank(nodes: frozenset[Site]) -> tuple[int, int, int]:
        kept = sum(site.run_id == 1 for site in nodes)
        return (-kept, sum(site.lemon for site in nodes), len({site.switch for site in nodes}))

    found = frozenset(site for site in sites if site.name in names)
    if any(site.lemon for site in found) and not all(site.run_id == 1 for site in found):
        return  # switches of the sound nodes are chosen first, then those of lemons
    others = (frozenset(nodes) for nodes in itertools.combinations(sites, count))
    assert rank(found) == min(map(rank, others))
