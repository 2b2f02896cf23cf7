"""How long a change takes, by kind: learned from past ones, robustly, with a prior.

    log D ~ Normal(m, s)     m = (PRIOR_WORTH log prior + n median(log seconds)) / (PRIOR_WORTH + n)

The median, so that one change that hung for an hour does not count as an hour. First from all runs,
then from those of one run with the former as its prior.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from planner import priors
from planner.objective import Transition
from planner.priors import LogNormal

PRIOR_WORTH = 2.0  # measured changes
LEAST_SPREAD = 0.1  # of the logarithm
SIDE = 1.645  # standard deviations to each side of an interval of 90 %
KINDS = tuple(field.name for field in fields(Transition))


@dataclass(frozen=True, slots=True)
class Changed:
    """A change that was carried out: seconds from when the fault was noticed until ranks ran."""

    run_id: int
    kind: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds of the next change of a kind, with an interval of 90 %."""

    kind: str
    seconds: float
    low: float
    high: float
    seen: int
    prior: str


def learn(changes: Iterable[Changed]) -> dict[str, Duration]:
    """By kind, over all runs."""
    return _by_kind(list(changes), priors.TRANSITIONS)


def of_run(
    run_id: int, changes: Iterable[Changed], of_all: Mapping[str, Duration]
) -> dict[str, Duration]:
    """By kind, of one run."""
    laws = {
        kind: LogNormal(d.seconds, math.log(d.high / d.seconds) / SIDE, f"all runs ({d.prior})")
        for kind, d in of_all.items()
    }
    return _by_kind([change for change in changes if change.run_id == run_id], laws)


def transition(durations: Mapping[str, Duration]) -> Transition:
    return Transition(**{kind: durations[kind].seconds for kind in KINDS})


def _by_kind(changes: Sequence[Changed], laws: Mapping[str, LogNormal]) -> dict[str, Duration]:
    return {
        kind: _duration(kind, [c.seconds for c in changes if c.kind == kind], laws[kind])
        for kind in KINDS
    }


def _duration(kind: str, seconds: Sequence[float], law: LogNormal) -> Duration:
    logs = np.log([s for s in seconds if s > 0])
    n, middle, spread = logs.size, math.log(law.median), law.sigma
    if n:
        here = float(np.median(logs))
        middle = (PRIOR_WORTH * middle + n * here) / (PRIOR_WORTH + n)
        own = max(LEAST_SPREAD, 1.4826 * float(np.median(np.abs(logs - here))))
        spread = math.sqrt((PRIOR_WORTH * law.sigma**2 + n * own**2) / (PRIOR_WORTH + n))
    wide = math.exp(SIDE * spread)
    value = math.exp(middle)
    return Duration(kind, value, value / wide, value * wide, n, law.source)
