"""How long nodes stay away, by pool: Gamma(a + returns, a M + hours away), M the prior's mean.

The law is exponential, as D_running takes it. Nodes that are still away count with the hours that
they have been so far, or the slowest repairs would be left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scipy.special import gammaincinv

from planner import priors

TAIL = 0.05  # at each side of an interval of 90 %


@dataclass(frozen=True, slots=True)
class Away:
    """A node out of service, under our eyes: for how long, and whether it is back."""

    pool: str
    hours: float
    back: bool


@dataclass(frozen=True, slots=True)
class Repair:
    """Mean hours until a node is back, with an interval of 90 %."""

    pool: str
    hours: float
    low: float
    high: float
    seen: int
    prior: str


def learn(seen: Iterable[Away], pools: Iterable[str]) -> Mapping[str, Repair]:
    told = list(seen)
    return {pool: _repair(pool, [away for away in told if away.pool == pool]) for pool in pools}


def _repair(pool: str, mine: list[Away]) -> Repair:
    law = priors.RETURN
    back = sum(away.back for away in mine)
    shape, exposure = law.shape + back, law.exposure + sum(away.hours for away in mine)
    slow, fast = gammaincinv(shape, [TAIL, 1 - TAIL])
    return Repair(
        pool, exposure / shape, float(exposure / fast), float(exposure / slow), back, law.source
    )
