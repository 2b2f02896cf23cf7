"""Whatever agents tell of speeds: little is kept, and nobody is found among equals."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from detectors.stragglers import OPEN, Comparison
from unicrond.model.pace import Pace

NODES = {rank: f"n{rank}" for rank in range(3)}
SECONDS = st.floats(1e-6, 86_400.0, exclude_min=True)
PACES = st.builds(Pace, st.integers(-5, 1 << 53), SECONDS, st.none() | SECONDS)


@given(st.lists(st.tuples(st.integers(-1, 4), PACES), max_size=200))
def test_any_paces_are_taken_and_few_are_kept(told: list[tuple[int, Pace]]) -> None:
    comparison = Comparison(1, NODES)
    for rank, pace in told:
        for finding in comparison.take(rank, pace):
            assert finding.rank in (None, *NODES)
        assert len(comparison._open) <= OPEN + 1


@given(st.lists(SECONDS, min_size=1, max_size=100))
def test_ranks_that_are_equally_fast_are_no_stragglers(seconds: list[float]) -> None:
    comparison = Comparison(1, NODES)
    for window, taken in enumerate(seconds):
        for rank in NODES:
            found = comparison.take(rank, Pace(window, taken, taken))
            assert [f for f in found if f.rank is not None] == []
