"""Policies side by side on the same traces, seed by seed, and what that says.

ratio     WAF of ours over that of a policy, for each seed; mean, 95 % interval (Student's t)
behind    how far ours is below that policy, median over the seeds: for the oracle
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.special import stdtrit

from simulator.engine import Outcome, simulate
from simulator.library import Scenario
from simulator.model import HOUR, Cause, Freed, Policy
from unicrond.errors import BadInput

OURS = "unicron"
USUAL = (
    "unicron", "unicron-today", "megatron", "slurm-requeue", "varuna", "oobleck", "bamboo",
    "equal", "weighted", "by-size", "oracle",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ratio:
    mean: float
    low: float
    high: float
    worst: float
    behind: float

    @staticmethod
    def of(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
        """Of two positive figures for each seed."""
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        mean, n = statistics.fmean(ratios), len(ratios)
        half = 0.0
        if n > 1:
            half = float(stdtrit(n - 1, 0.975)) * statistics.stdev(ratios) / n**0.5
        behind = statistics.median(1 - ratio for ratio in ratios)
        return Ratio(mean, mean - half, mean + half, min(ratios), behind)


@dataclass(frozen=True, slots=True)
class Study:
    scenario: Scenario
    seeds: Sequence[int]
    outcomes: dict[str, list[Outcome]]  # by policy, in the order of the seeds

    def waf(self, policy: str) -> list[float]:
        return [outcome.waf for outcome in self.outcomes[policy]]

    def ratio(self, policy: str, ours: str = OURS) -> Ratio | None:
        """None where ours was not asked for, or a policy never trained."""
        if ours not in self.outcomes or not all(self.waf(policy)):
            return None
        return Ratio.of(self.waf(ours), self.waf(policy))


def study(
    scenario: Scenario,
    policies: Sequence[Policy],
    seeds: Sequence[int],
    tell: Callable[[str], None] = lambda text: None,
) -> Study:
    outcomes: dict[str, list[Outcome]] = {policy.name: [] for policy in policies}
    for seed in seeds:
        failures = scenario.failures(seed)
        for policy in policies:
            tell(f"seed {seed}: {policy.name}")
            outcomes[policy.name].append(simulate(scenario.cluster, policy, failures, seed))
    return Study(scenario, seeds, outcomes)


def chosen(known: dict[str, Policy], names: Sequence[str]) -> list[Policy]:
    for name in names:
        if name not in known:
            raise BadInput(f"--policy: no policy {name!r}; policies: {', '.join(known)}")
    return [known[name] for name in names]


def as_json(found: Study) -> dict[str, Any]:
    cluster, scenario = found.scenario.cluster, found.scenario
    gpus = cluster.nodes * cluster.gpus
    return {
        "scenario": scenario.name,
        "about": scenario.about,
        "sources": dict(scenario.sources),
        "cluster": {"nodes": cluster.nodes, "gpus": gpus, "hours": cluster.length / HOUR},
        "repair_hours": cluster.repair_seconds / 3600,
        "freed": str(cluster.queue.freed),
        "others_waiting": cluster.queue.others_waiting if cluster.queue.freed is Freed.SLURM else 0,
        "runs": [
            {"id": run.run_id, "name": run.name, "weight": run.weight} for run in cluster.runs
        ],
        "seeds": list(found.seeds),
        "gpu_hours": gpus * cluster.length / HOUR,
        "policies": [_policy(found, name) for name in found.outcomes],
    }


def _policy(found: Study, name: str) -> dict[str, Any]:
    outcomes, ratio = found.outcomes[name], found.ratio(name)
    policy = outcomes[0].policy
    return {
        "name": name,
        "about": policy.about,
        "sources": dict(policy.sources),
        "waf_flop": statistics.fmean(outcome.waf for outcome in outcomes),
        "goodput": statistics.fmean(outcome.goodput for outcome in outcomes),
        "ettr": statistics.fmean(outcome.ettr for outcome in outcomes),
        "changes": statistics.fmean(outcome.changes for outcome in outcomes),
        "gpu_hours": {
            str(cause): statistics.fmean(outcome.spent[cause] / HOUR for outcome in outcomes)
            for cause in Cause
        },
        "ours_over_it": None
        if ratio is None
        else {"mean": ratio.mean, "low": ratio.low, "high": ratio.high, "worst": ratio.worst},
        "waf_by_seed": found.waf(name),
    }
