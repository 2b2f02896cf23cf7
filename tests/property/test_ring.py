"""Who keeps whose copies: in balance, and on another switch where there is one."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from unicrond.agent.ring import keepers

PLACED = st.lists(st.sampled_from(["s1", "s2", "s3", ""]), min_size=1, max_size=24)


@given(PLACED, st.integers(0, 4), st.randoms())
def test_every_node_keeps_as_many_as_it_has_kept(placed, count, random) -> None:  # type: ignore[no-untyped-def]
    nodes = [f"n{number}" for number in range(len(placed))]
    switches = {node: switch for node, switch in zip(nodes, placed, strict=True) if switch}
    shuffled = random.sample(nodes, len(nodes))
    chosen = {node: keepers(node, shuffled, switches, count) for node in nodes}
    wanted = min(count, len(nodes) - 1)
    assert all(len(set(them) - {node}) == wanted for node, them in chosen.items())
    assert set(Counter(one for them in chosen.values() for one in them).values()) <= {wanted}


@given(PLACED)
def test_the_first_is_on_another_switch_where_none_has_more_than_half(placed: list[str]) -> None:
    nodes = [f"n{number}" for number in range(len(placed))]
    switches = dict(zip(nodes, placed, strict=True))
    most = max(Counter(placed).values())
    same = sum(
        switches[node] == switches[one]
        for node in nodes
        for one in keepers(node, nodes, switches, 1)
    )
    assert same == (max(0, 2 * most - len(nodes)) if len(nodes) > 1 else 0)


def test_a_node_outside_has_nobody() -> None:
    assert keepers("n9", ["n1", "n2"], {}, 1) == []
