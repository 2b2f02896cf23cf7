"""Limits by account in one pool: the best that keeps them, to the last unit, for any shape."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.accounts import divide_within
from planner.allocator import Infeasible
from planner.kernels import ILLEGAL, Ints
from planner.objective import Limits

Worth = tuple[int, int, int]


def worth(gains: Ints, held: list[int], sizes: tuple[int, ...]) -> Worth:
    moved = [abs(size - has) for size, has in zip(sizes, held, strict=True)]
    return sum(int(gains[i, k]) for i, k in enumerate(sizes)), -sum(map(bool, moved)), -sum(moved)


def kept(accounts: list[str], limits: dict[str, Limits], sizes: tuple[int, ...]) -> bool:
    used = Counter[str]()
    for account, size in zip(accounts, sizes, strict=True):
        used[account] += size
    return all(limits[name].allow(used[name]) for name in limits if name in accounts)


@given(st.integers(0, 2**32 - 1))
def test_no_division_that_keeps_the_limits_is_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    runs, workers = int(rng.integers(1, 5)), int(rng.integers(1, 7))
    gains = rng.integers(-5, 20, (runs, workers + 1))
    gains[rng.random(gains.shape) < 0.25] = ILLEGAL
    gains[:, 0] = np.where(rng.random(runs) < 0.8, 0, gains[:, 0])
    held = [int(x) for x in rng.integers(0, 3, runs)]
    accounts = [str(name) for name in rng.choice(list("abc"), runs)]
    limits = {
        "a": Limits(int(rng.integers(0, 3)), int(rng.integers(3, 7))),
        "b": Limits(0, int(rng.integers(0, 4)) if rng.random() < 0.5 else None),
    }
    legal = [np.flatnonzero(row != ILLEGAL).tolist() for row in gains]
    best = max(
        (
            worth(gains, held, sizes)
            for sizes in itertools.product(*legal)
            if sum(sizes) <= workers and kept(accounts, limits, sizes)
        ),
        default=None,
    )
    if best is None:
        with pytest.raises(Infeasible):
            divide_within(gains, held, workers, accounts, limits)
        return
    found = divide_within(gains, held, workers, accounts, limits)
    assert sum(found.sizes) <= workers and kept(accounts, limits, found.sizes)
    assert (found.gain, worth(gains, held, found.sizes)) == (best[0], best)


def test_a_guarantee_takes_from_the_richer_account_and_no_more_than_it_must() -> None:
    size = np.arange(11)
    gains = np.array([100 * size, 90 * size, size, size])
    accounts, limits = ["rich", "rich", "poor", "poor"], {"poor": Limits(floor=3)}
    assert divide_within(gains, [5, 5, 0, 0], 10, accounts, {}).sizes == (10, 0, 0, 0)
    assert divide_within(gains, [5, 5, 0, 0], 10, accounts, limits).sizes == (7, 0, 3, 0)
    limits = {"rich": Limits(ceiling=6)}
    assert divide_within(gains, [5, 5, 0, 0], 10, accounts, limits).sizes == (6, 0, 4, 0)
