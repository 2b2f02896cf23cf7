"""Traces of failures: drawn from laws with a seed. The same seed is the same trace.

    counts   so many of severity 1, so many others, at times uniform over the length
    rate     per node, exponential or Weibull between failures, kinds by their shares
    switch   per switch, exponential: all of its nodes at once

A node that is out of service does not fail. What repairs take does not depend on any policy, so
policies are compared on the same trace.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simulator.kinds import KINDS, SHARES, SWITCH
from simulator.model import DAY, HOUR, Failure

Law = Literal["exponential", "weibull", "lognormal", "constant"]
YEAR = 365 * DAY


@dataclass(frozen=True, slots=True)
class Lasting:
    """A law of durations by its mean. `shape`: Weibull's k, or sigma of the lognormal."""

    law: Law
    mean: float
    shape: float = 1.0

    def draw(self, dice: np.random.Generator) -> float:
        return float(self.draw_many(dice, 1)[0])

    def draw_many(
        self, dice: np.random.Generator, count: int
    ) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        match self.law:
            case "exponential":
                return dice.exponential(self.mean, count)
            case "weibull":
                scale = self.mean / math.gamma(1 + 1 / self.shape)
                return scale * dice.weibull(self.shape, count)
            case "lognormal":
                return dice.lognormal(math.log(self.mean) - self.shape**2 / 2, self.shape, count)
            case "constant":
                return np.full(count, self.mean)


@dataclass(frozen=True, slots=True)
class Laws:
    """`severe`, `others`: exact counts. `between`: of one node's failures, None for none."""

    repair: Lasting  # milliseconds
    severe: int = 0
    others: int = 0
    between: Lasting | None = None  # milliseconds
    switches_per_year: float = 0.0  # failures of one switch
    shares: Mapping[str, float] | None = None

    def mean_rate(self, nodes: int, length: int) -> float:
        """Failures of severity 1 of a node and a millisecond."""
        shares = self.shares or SHARES
        severe = sum(s for kind, s in shares.items() if KINDS[kind].severity == 1)
        drawn = severe / sum(shares.values()) / self.between.mean if self.between else 0.0
        return self.severe / (nodes * length) + drawn + self.switches_per_year / YEAR


def draw(laws: Laws, nodes: int, per_switch: int, length: int, seed: int) -> tuple[Failure, ...]:
    dice = np.random.default_rng(seed)
    wanted = sorted(
        [*_counted(laws, length, dice), *_switches(laws, nodes, per_switch, length, dice)]
    )
    return tuple(_Draw(laws, nodes, per_switch, length, dice).failures(wanted))


# (when, kind, first node or -1 where any will do)
_Due = tuple[float, str, int]


def _counted(laws: Laws, length: int, dice: np.random.Generator) -> Iterator[_Due]:
    shares = laws.shares or SHARES
    for count, severe in ((laws.severe, True), (laws.others, False)):
        names = [kind for kind in shares if (KINDS[kind].severity == 1) is severe]
        for at in dice.uniform(0, length, count):
            yield float(at), _pick(dice, {name: shares[name] for name in names}), -1


def _switches(
    laws: Laws, nodes: int, per_switch: int, length: int, dice: np.random.Generator
) -> Iterator[_Due]:
    for first in range(0, nodes, per_switch) if laws.switches_per_year else ():
        for at in dice.uniform(0, length, dice.poisson(laws.switches_per_year * length / YEAR)):
            yield float(at), SWITCH, first


def _pick(dice: np.random.Generator, shares: Mapping[str, float]) -> str:
    names = list(shares)
    weights = np.array([shares[name] for name in names])
    return names[int(dice.choice(len(names), p=weights / weights.sum()))]


class _Draw:
    """Lets time pass over the nodes, and knows which of them are out of service."""

    def __init__(
        self, laws: Laws, nodes: int, per_switch: int, length: int, dice: np.random.Generator
    ) -> None:
        self.laws, self.length, self.dice = laws, length, dice
        self.per_switch = per_switch
        self.back = np.zeros(nodes)  # when each node is in service again

    def failures(self, wanted: Sequence[_Due]) -> Iterator[Failure]:
        heap = list(wanted)
        if self.laws.between:
            first = self.laws.between.draw_many(self.dice, self.back.size)
            heap += [(float(at), "", n) for n, at in enumerate(first) if at < self.length]
        heapq.heapify(heap)
        while heap:
            at, kind, node = heapq.heappop(heap)
            failure = self._failure(at, kind, node)
            if failure:
                yield failure
            if not kind and self.laws.between:  # one node's renewal goes on
                again = max(at, float(self.back[node])) + self.laws.between.draw(self.dice)
                if again < self.length:
                    heapq.heappush(heap, (again, "", node))

    def _failure(self, at: float, kind: str, node: int) -> Failure | None:
        drawn = kind or _pick(self.dice, self.laws.shares or SHARES)
        if kind == SWITCH:
            candidates = np.arange(node, min(node + self.per_switch, self.back.size))
        else:
            candidates = np.arange(self.back.size) if node < 0 else np.array([node])
        up = candidates[self.back[candidates] <= at]
        if not up.size:
            return None
        hit = up if kind == SWITCH else [self.dice.choice(up)] if node < 0 else up
        severe = KINDS[drawn].severity == 1
        repair = max(1, round(self.laws.repair.draw(self.dice))) if severe else 0
        self.back[hit] = at + repair if severe else self.back[hit]
        return Failure(int(at), tuple(int(n) for n in hit), drawn, repair)


def mean_of(failures: Sequence[Failure], nodes: int, length: int) -> tuple[float, float]:
    """What a told trace comes to: severe failures of a node and millisecond; the mean repair."""
    severe = [failure for failure in failures if failure.repair]
    lost = sum(failure.lost for failure in severe)
    repair = sum(failure.repair for failure in severe) / len(severe) if severe else float(HOUR)
    return lost / (nodes * length), repair
