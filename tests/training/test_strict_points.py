"""The strict loop with failures at every place of it: the same mathematics, and each micro-batch
counts once in each bucket."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from threads import Member, World
from torch import Tensor, nn

from unicron import gradients
from unicron.strict import Strict

pytestmark = pytest.mark.training
COUNT, DIM, FAILS_AT, LAST = 7, 4, 3, 23
TOLERANCE = {torch.float64: (1e-12, 1e-12), torch.float32: (1e-6, 1e-5)}


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gradients, "BUCKET_BYTES", 100)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def made(dtype: torch.dtype, seed: int) -> dict[str, Any]:
    """Threads share torch's own generator, so not from that."""
    model = nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh(), nn.Linear(DIM, 1)).to(dtype)
    drawn = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for one in model.parameters():
            one.copy_(torch.randn(one.shape, generator=drawn, dtype=torch.float64) / 2)
    counters = nn.ParameterList([torch.zeros(COUNT, dtype=dtype) for _ in range(2)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return {"model": model, "counters": counters, "optimizer": optimizer}


def loss(state: dict[str, Any], step: int, number: int) -> Tensor:
    dtype = state["counters"][0].dtype
    drawn = torch.Generator().manual_seed(step * COUNT + number)
    x = torch.randn(3, DIM, generator=drawn, dtype=torch.float64).to(dtype)
    counted = sum(counter[number] for counter in state["counters"])
    mean: Tensor = state["model"](x).square().mean() / COUNT + counted
    return mean


def flat(state: dict[str, Any]) -> Tensor:
    return torch.cat([one.detach().flatten().double() for one in state["model"].parameters()])


@functools.cache
def whole(dtype: torch.dtype) -> dict[int, Tensor]:
    """Parameters after each train step without failures, in one process."""
    state, found = made(dtype, 0), {}
    for step in range(1, LAST + 1):
        state["optimizer"].zero_grad()
        for number in range(COUNT):
            loss(state, step, number).backward()
        state["optimizer"].step()
        found[step] = flat(state)
    return found


class Told:
    """What the members of one world have committed."""

    def __init__(self, dtype: torch.dtype, last: int, keeps: bool) -> None:
        self.dtype, self.last, self.keeps = dtype, last, keeps
        self.after: defaultdict[int, list[Tensor]] = defaultdict(list)
        self.ended: list[Tensor] = []

    def train(self, member: Member) -> None:
        state = made(self.dtype, member.rank + len(member.name))
        if member.name == "m0":
            state = made(self.dtype, 0)
        strict = Strict(member, state, COUNT, lambda: 0, self.keeps)
        state["optimizer"].register_step_pre_hook(lambda *_: member.at(f"in step {step}"))
        for step in strict.steps(self.last):
            for number in strict.micro_batches(step):
                member.at(f"micro {step}")
                loss(state, step, number).backward()
            member.at(f"reduce {step}")
            if strict.reduce():
                for counter in state["counters"]:
                    assert counter.grad.tolist() == [1.0] * COUNT
                state["optimizer"].step()
                member.at(f"stepped {step}")
                strict.commit()
                member.at(f"committed {step}")
                self.after[step].append(flat(state))
        self.ended.append(flat(state))


def held(
    size: int,
    deaths: dict[str, str],
    joins: bool = False,
    dtype: torch.dtype = torch.float64,
    last: int = FAILS_AT + 2,
    keeps: bool = True,
    seed: int = 0,
) -> World:
    world, told = World(size, deaths, joins, seed), Told(dtype, last, keeps)
    world.run(told.train)
    assert set(told.after) == set(range(1, last + 1))
    assert len(told.ended) == len(world.members)
    close, later = TOLERANCE[dtype]
    for step, found in [*told.after.items(), (last, told.ended)]:
        want = whole(dtype)[step]
        limit = close if step <= FAILS_AT else later
        assert max(float((one - want).norm() / want.norm()) for one in found) <= limit
    return world


@functools.cache
def places(size: int) -> list[str]:
    """That member m0 passes in the train step that is to fail, in a world without failures."""
    world = held(size, {})
    passed = [place for name, place in world.places if name == "m0"]
    begin, end = passed.index(f"micro {FAILS_AT}"), passed.index(f"micro {FAILS_AT + 1}")
    counted = [f"{p}#{passed[: n + 1].count(p)}" for n, p in enumerate(passed)]
    return counted[begin:end]


@pytest.mark.parametrize("size", [2, 3, 6])
def test_a_member_is_lost_at_each_place_of_a_train_step(size: int) -> None:
    every = places(size)
    assert len(every) >= 12, every
    for seed, place in enumerate(every):
        world = held(size, {"m0": place}, joins=seed % 3 == 0, seed=seed)
        assert not world.deaths, f"{place} was passed"


@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "in place"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_twenty_train_steps_later_the_parameters_are_still_the_same(
    dtype: torch.dtype, keeps: bool
) -> None:
    for seed, place in enumerate(["micro 3#2", "bucket#10", "wait#11", f"stepped {FAILS_AT}"]):
        for size in (3, 4):
            held(size, {"m0": place}, seed % 2 == 0, dtype, LAST, keeps, seed)


@pytest.mark.parametrize("first", [f"micro {FAILS_AT}", "wait#11", f"stepped {FAILS_AT}"])
@pytest.mark.parametrize(
    "then",
    [{"m1": f"exchange#{n}"} for n in (3, 4)]
    + [{"m1": f"hand#{n}"} for n in (2, 3, 4)]
    + [{"j1": "exchange#1"}, {"j1": "exchange#2"}, {"j1": "hand#1"}, {"j1": f"micro {FAILS_AT}"}]
    + [{"m1": "exchange#3", "m2": "exchange#4", "j1": "hand#1"}],
    ids=str,
)
def test_a_recovery_fails_too(first: str, then: dict[str, str]) -> None:
    for seed in range(2):
        held(4, {"m0": first, **then}, joins=any(n[0] == "j" for n in then), seed=seed)


def test_whoever_is_behind_at_the_end_copies_the_last_train_step() -> None:
    last = FAILS_AT + 2
    for seed, place in enumerate([f"committed {last}", "exchange#3", f"stepped {last}", "wait#20"]):
        held(3, {"m0": place}, joins=seed % 2 == 0, seed=seed)


PLACES = [f"{what} {step}" for what in ("micro", "reduce", "in step", "stepped", "committed")
          for step in range(1, FAILS_AT + 2)] + [
    f"{what}#{n}" for what, most in (("bucket", 24), ("wait", 24), ("exchange", 9), ("hand", 9))
    for n in range(1, most)
]  # fmt: skip


@settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(
    size=some.integers(2, 6),
    deaths=some.dictionaries(
        some.sampled_from(["m1", "m2", "m3", "m4", "m5", "j1", "j2"]), some.sampled_from(PLACES)
    ),
    joins=some.booleans(),
    keeps=some.booleans(),
    seed=some.integers(0, 1000),
)
def test_any_members_are_lost_anywhere(
    size: int, deaths: dict[str, str], joins: bool, keeps: bool, seed: int
) -> None:
    held(size, deaths, joins, torch.float64, FAILS_AT + 2, keeps, seed)
