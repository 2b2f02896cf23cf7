"""The allocator against brute force, the plain recurrence and an integer program."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from planner.allocator import Infeasible, divide, largest_total
from planner.kernels import ILLEGAL, Ints
from unicrond.errors import BadInput

SEEDS = st.integers(0, 2**32 - 1)


def key(
    gains: Ints, held: list[int], sizes: tuple[int, ...]
) -> tuple[int, int, int, tuple[int, ...]]:
    """What decides between two divisions, the greater the better."""
    return (
        sum(int(gains[i, k]) for i, k in enumerate(sizes)),
        -sum(k != h for k, h in zip(sizes, held, strict=True)),
        -sum(abs(k - h) for k, h in zip(sizes, held, strict=True)),
        sizes,
    )


def by_trying_all(gains: Ints, held: list[int], workers: int) -> tuple[int, ...] | None:
    legal = [np.flatnonzero(row[: workers + 1] != ILLEGAL).tolist() for row in gains]
    fitting = (sizes for sizes in itertools.product(*legal) if sum(sizes) <= workers)
    return max(fitting, key=lambda sizes: key(gains, held, sizes), default=None)


def by_plain_recurrence(gains: Ints, held: list[int], workers: int) -> tuple[int, ...]:
    """Over every size, the order among equals in the same numbers: for small gains only."""
    move = workers + sum(held) + 1
    unit = (len(held) + 1) * move
    sizes = np.arange(gains.shape[1])
    keys = gains * unit - (sizes != np.array(held)[:, None]) * move
    keys = np.where(gains == ILLEGAL, -(2**60), keys - abs(sizes - np.array(held)[:, None]))
    tables = [np.zeros(workers + 1, np.int64)]
    for row in keys[::-1]:
        best = np.full(workers + 1, -(2**61), np.int64)
        for k in range(workers + 1):
            best[k:] = np.maximum(best[k:], tables[-1][: workers + 1 - k] + row[k])
        tables.append(best)
    chosen, left = [], workers
    for i, row in enumerate(keys):
        here, rest = tables[len(held) - i], tables[len(held) - i - 1]
        k = next(k for k in range(left, -1, -1) if rest[left - k] + row[k] == here[left])
        chosen.append(k)
        left -= k
    return tuple(chosen)


def small_instances(seed: int, count: int) -> Iterator[tuple[Ints, list[int], int]]:
    """Plateaus, gaps, zeros, stairs, concave and wild rows; more may be held than is there."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        runs, workers = int(rng.integers(1, 5)), int(rng.integers(0, 8))
        shape = (runs, workers + 1 + int(rng.integers(0, 3)))
        gains = rng.integers(-3, rng.choice([1, 2, 4, 10, 1000]), shape)
        match rng.integers(3):
            case 0:
                gains = np.sort(gains, axis=1)
            case 1:
                gains = np.cumsum(-np.sort(-gains, axis=1), axis=1)
        gains[rng.random(shape) < rng.choice([0, 0.2, 0.6])] = ILLEGAL
        yield gains.astype(np.int64), rng.integers(0, workers + 3, runs).tolist(), workers


@given(SEEDS)
def test_the_division_is_the_one_that_trying_all_finds_ties_included(seed: int) -> None:
    for gains, held, workers in small_instances(seed, 12):
        expected = by_trying_all(gains, held, workers)
        if expected is None:
            with pytest.raises(Infeasible, match="floor"):
                divide(gains, held, workers)
        else:
            found = divide(gains, held, workers)
            assert (found.sizes, found.gain) == (expected, key(gains, held, expected)[0])


@given(SEEDS)
def test_ties_over_many_blocks_of_columns_fall_as_in_the_plain_recurrence(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(4):
        runs, workers = int(rng.integers(2, 5)), int(rng.integers(60, 150))
        gains = rng.integers(0, rng.choice([2, 3, 9]), (runs, workers + 1))
        gains += rng.integers(0, 3) * np.arange(workers + 1) // rng.integers(1, 30)
        held = rng.integers(0, workers // runs, runs).tolist()
        assert divide(gains, held, workers).sizes == by_plain_recurrence(gains, held, workers)


def wide_shapes(rng: np.random.Generator, runs: int, workers: int) -> dict[str, Ints]:
    """Shapes over several blocks of columns, that each defeat another shortcut."""
    k, weight = np.arange(workers + 1), rng.integers(1, 9, (runs, 1))
    gaps = np.tile(k * 10, (runs, 1))
    gaps[rng.random(gaps.shape) < 0.9] = ILLEGAL
    gaps[:, 0] = 0
    floors = weight * k * 10
    floors[:, : workers // (2 * runs)] = ILLEGAL
    step = rng.integers(workers // 20, workers // 3, (runs, 1))
    return {
        "wild": rng.integers(-1000, 1000, (runs, workers + 1)),
        "gaps": gaps,
        "floors": floors,
        "linear": np.tile(k * 10, (runs, 1)),
        "nothing gains": np.zeros((runs, workers + 1), np.int64),
        "convex": weight * k * k,
        "concave": (weight * 1000 * np.sqrt(k)).astype(np.int64),
        "stairs": weight * (k // 8) * 80,
        "steps": np.where(k >= step, step + 3, 0),
        "waves": k * 10 + (300 * np.sin(k / (2 + weight))).astype(np.int64),
        "batches": 10**6 // -(-64 // np.maximum(k, 1)) * weight,
    }


SHAPES = list(wide_shapes(np.random.default_rng(0), 4, 100))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("priced", [False, True], ids=["free moves", "priced moves"])
def test_every_shape_is_divided_as_the_plain_recurrence_does(shape: str, priced: bool) -> None:
    rng = np.random.default_rng(SHAPES.index(shape))
    for _ in range(3):
        runs, workers = int(rng.integers(2, 9)), int(rng.integers(130, 300))
        gains = wide_shapes(rng, runs, workers)[shape].astype(np.int64)
        held = rng.integers(0, workers // runs, runs).tolist()
        if priced:
            gains[(gains != ILLEGAL) & (np.arange(workers + 1) != np.array(held)[:, None])] -= 40
        found = divide(gains, held, workers)
        assert found.sizes == by_plain_recurrence(gains, held, workers)


def by_integer_program(gains: Ints, workers: int) -> int:
    run, size = np.nonzero(gains != ILLEGAL)
    each = (run == np.arange(len(gains))[:, None]).astype(float)
    answer = milp(
        -gains[run, size].astype(float),
        constraints=[LinearConstraint(size[None, :], ub=workers), LinearConstraint(each, 1, 1)],
        integrality=np.ones(len(run)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0},
    )
    return round(-answer.fun)


@pytest.mark.parametrize("shape", ["wild", "gaps", "concave", "waves", "steps"])
def test_middle_sizes_are_worth_what_an_integer_program_finds(shape: str) -> None:
    rng = np.random.default_rng(5)
    gains = wide_shapes(rng, 15, 90)[shape].astype(np.int64)
    assert divide(gains, [6] * 15, 90).gain == by_integer_program(gains, 90)


@given(SEEDS)
def test_gains_as_large_as_allowed_are_still_exact(seed: int) -> None:
    rng = np.random.default_rng(seed)
    held = rng.integers(0, 6, 3).tolist()
    most = largest_total(3, 6, sum(held)) // 3
    gains = rng.integers(-most, most, (3, 7), endpoint=True)
    gains[:, 3] = most - rng.integers(0, 2, 3)  # differences of one unit at full height
    found = divide(gains, held, 6)
    assert found.sizes == by_trying_all(gains, held, 6)


def test_gains_that_int64_cannot_carry_are_refused() -> None:
    gains = np.full((2, 5), 2**57, np.int64)
    with pytest.raises(BadInput, match="too large"):
        divide(gains, [1, 1], 4)
    slope = largest_total(2, 4, 2) * 9 // 10 * np.array([[0, 1, 1, 1, 1]] * 2, np.int64)
    assert divide(slope, [1, 1], 4).sizes == (1, 1)
    assert divide(slope, [1, 1], 1).sizes == (1, 0)


def test_no_runs_and_no_workers_are_divisions_too() -> None:
    assert divide(np.zeros((0, 9), np.int64), [], 8).sizes == ()
    assert divide(np.zeros((2, 1), np.int64), [0, 0], 0).sizes == (0, 0)
