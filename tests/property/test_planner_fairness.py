"""Nobody waits for ever, and noise moves no plan to and fro."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from plannerworld import claim, cluster, sizes, table

from planner.fairness import Wait, smallest, with_turns
from planner.objective import Claim, Limits, Problem, Transition
from planner.pools import solve

SEEDS = st.integers(0, 2**32 - 1)
WORKERS = 12
PATIENCE, TURN, TICK = 10.0, 5.0, 1.0  # hours, say


def any_runs(rng: np.random.Generator) -> tuple[Claim, ...]:
    """Of weights so unequal that the small ones would never have a chance."""
    return tuple(
        claim(
            i, 0, table(WORKERS, power=float(rng.uniform(0.5, 1.2)), least=int(rng.integers(1, 9))),
            weight=float(10 ** rng.uniform(-4, 4)),
        )
        for i in range(int(rng.integers(2, 6)))
    )  # fmt: skip


class Shop:
    """Carries each plan out at once, and keeps the times."""

    def __init__(self, claims: Sequence[Claim]) -> None:
        self.claims = tuple(claims)
        self.waits = {c.run_id: Wait() for c in claims}

    def tick(self) -> None:
        problem = with_turns(cluster(*self.claims, workers=WORKERS), self.waits, PATIENCE)
        got = sizes(solve(problem))
        self.claims = tuple(
            replace(c, size=x, present_flops=float(c.throughput["gpu"][x]) if x else 0.0)
            for c, x in zip(self.claims, got, strict=True)
        )
        self.waits = {c.run_id: self._after(c) for c in self.claims}

    def _after(self, run: Claim) -> Wait:
        before = self.waits[run.run_id]
        if not run.size:
            return Wait(before.waited_seconds + TICK)
        served = before.waited_seconds >= PATIENCE
        return Wait(0.0, TURN - TICK if served else max(0.0, before.turn_left_seconds - TICK))


@given(SEEDS)
def test_a_low_weight_is_never_starved_for_ever(seed: int) -> None:
    shop = Shop(any_runs(np.random.default_rng(seed)))
    most = PATIENCE + TURN * (len(shop.claims) - 1) + TICK
    for _ in range(60):
        shop.tick()
        assert max(wait.waited_seconds for wait in shop.waits.values()) <= most


@given(SEEDS)
def test_turns_change_nothing_where_nobody_waits(seed: int) -> None:
    claims = any_runs(np.random.default_rng(seed))
    problem = with_turns(cluster(*claims, workers=WORKERS), {}, PATIENCE)
    assert [c.floor for c in problem.claims] == [0] * len(claims)


def test_without_turns_the_light_run_would_wait_for_ever() -> None:
    light, heavy = claim(1, 0, weight=1e-3), claim(2, 0, table(power=1.0), weight=1e3)
    assert sizes(solve(cluster(light, heavy))) == [0, 16]
    waits = {1: Wait(PATIENCE)}
    assert sizes(solve(with_turns(cluster(light, heavy), waits, PATIENCE))) == [1, 15]


@given(SEEDS, st.integers(0, 8))
def test_turns_never_ask_for_more_than_there_is(seed: int, floor: int) -> None:
    rng = np.random.default_rng(seed)
    first, *others = any_runs(rng)
    problem = cluster(replace(first, floor=max(floor, smallest(first))), *others, workers=WORKERS)
    waits = {c.run_id: Wait(float(rng.uniform(0, 30))) for c in problem.claims}
    turns = with_turns(problem, waits, PATIENCE)
    assert sum(c.floor for c in turns.claims) <= WORKERS
    assert sum(sizes(solve(turns))) <= WORKERS


def test_a_run_too_large_for_the_pool_keeps_nobody_waiting() -> None:
    large, small = claim(1, 0, table(64, least=40)), claim(2, 0, weight=1e-6)
    greedy = claim(3, 0, weight=1e6)
    problem = cluster(large, small, greedy, workers=16)
    waits = {1: Wait(50.0), 2: Wait(20.0)}
    assert [c.floor for c in with_turns(problem, waits, PATIENCE).claims] == [0, 1, 0]


def test_nobody_overtakes_a_run_that_waits_for_room() -> None:
    taking_its_turn = claim(1, 10, table(16, least=10))
    large, small = claim(2, 0, table(16, least=8)), claim(3, 0)
    waits = {1: Wait(0.0, 1.0), 2: Wait(30.0), 3: Wait(20.0)}
    problem = with_turns(cluster(taking_its_turn, large, small), waits, PATIENCE)
    assert [c.floor for c in problem.claims] == [10, 0, 0]
    waits[1] = Wait()
    problem = with_turns(problem_without_floors(problem), waits, PATIENCE)
    assert [c.floor for c in problem.claims] == [0, 8, 1]


def problem_without_floors(problem: Problem) -> Problem:
    return replace(problem, claims=tuple(replace(c, floor=0) for c in problem.claims))


NOISE = 0.05  # of each T, at each look


@given(SEEDS)
def test_noise_in_t_never_moves_a_plan_back_to_where_it_was(seed: int) -> None:
    """Each move makes the division better in truth, so none is come back to."""
    rng = np.random.default_rng(seed)
    truth = [table(WORKERS, power=float(rng.uniform(0.3, 1.0))) for _ in range(3)]
    weights, seconds = rng.uniform(0.8, 1.25, 3), Transition(*[60.0] * 5)
    present = [int(x) for x in rng.multinomial(WORKERS, [1 / 3] * 3)]
    worth, seen = 0.0, set[tuple[int, ...]]()
    for _ in range(12):
        seen.add(tuple(present))
        now = sum(w * t[x] for w, t, x in zip(weights, truth, present, strict=True) if x)
        assert now >= worth * (1 - 1e-9)
        worth = float(now)
        noisy = [t * rng.uniform(1 - NOISE, 1 + NOISE, t.size) for t in truth]
        claims = (
            claim(i, x, t, weight=float(w), transition=seconds)
            for i, (x, t, w) in enumerate(zip(present, noisy, weights, strict=True))
        )
        problem = cluster(*claims, workers=WORKERS, noise=2 * NOISE / (1 + NOISE))
        found = sizes(solve(problem))
        assert found == present or tuple(found) not in seen
        present = found


@given(SEEDS)
def test_a_plan_that_noise_cannot_better_stays(seed: int) -> None:
    rng = np.random.default_rng(seed)
    equal = [claim(i, 4, table(WORKERS, power=0.8)) for i in range(3)]
    noisy = [
        replace(
            c,
            throughput={"gpu": (t := c.throughput["gpu"] * rng.uniform(0.95, 1.05, WORKERS + 1))},
            present_flops=float(t[4]),
        )
        for c in equal
    ]
    assert sizes(solve(cluster(*noisy, workers=WORKERS, noise=2 * NOISE / (1 + NOISE)))) == [4] * 3


def test_a_turn_keeps_to_the_ceiling_of_the_account_and_comes_out_of_its_floor() -> None:
    light = claim(1, 0, table(least=3), weight=1e-3, account="a")
    heavy = claim(2, 0, table(power=1.0), weight=1e3, account="b")
    waits = {1: Wait(PATIENCE)}

    def under(**limits: Limits) -> list[int]:
        problem = cluster(light, heavy, workers=10, accounts=limits)
        return sizes(solve(with_turns(problem, waits, PATIENCE)))

    assert under() == [3, 7]
    assert under(a=Limits(ceiling=2)) == [0, 10], "no turn that its account may not have"
    assert under(a=Limits(floor=4)) == [4, 6]
    assert under(b=Limits(floor=8)) == [0, 10], "no turn that others' guarantees leave no room for"


@given(SEEDS)
def test_turns_under_limits_by_account_leave_a_division(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = rng.choice(["a", "b"], 5)
    claims = tuple(replace(c, account=str(names[c.run_id])) for c in any_runs(rng))
    limits = {"a": Limits(0, int(rng.integers(0, 9))), "b": Limits(0, int(rng.integers(0, 9)))}
    waits = {c.run_id: Wait(float(rng.uniform(0, 3 * PATIENCE))) for c in claims}
    problem = with_turns(cluster(*claims, workers=WORKERS, accounts=limits), waits, PATIENCE)
    for name, limit in limits.items():
        used = sum(c.floor for c in problem.claims if c.account == name)
        assert limit.ceiling is not None and used <= limit.ceiling
    solve(problem)
