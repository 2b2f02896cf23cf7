"""The lease: when an agent must stop its ranks because the run may go on without it. Pure.

    heard unicrond, or every node of the generation (itself or through a hub)  within the lease
    and  unicrond or slurmctld answered some agent of the run  within SlurmdTimeout minus a margin

Where the second fails, Slurm may have given the nodes up and started the job elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

NEVER = 1e9


@dataclass(frozen=True, slots=True)
class LeaseConfig:
    lease_seconds: float
    authority_seconds: float  # SlurmdTimeout minus its margin; 0: Slurm never gives a node up


@dataclass(frozen=True, slots=True)
class Report:
    """What another agent said `age` seconds ago of the answers it got."""

    age: float
    daemon_age: float
    slurm_age: float


def authority_age(daemon_age: float, slurm_age: float, peers: Iterable[Report]) -> float:
    """Seconds since unicrond or slurmctld answered any agent of the run, as far as we know."""
    answers = [daemon_age, slurm_age]
    for report in peers:
        answers.append(min(report.daemon_age, report.slurm_age) + report.age)
    return min(answers)


def authority_seconds(slurmd_timeout_seconds: float, margin_seconds: float) -> float:
    """0 stays 0; a short time-out leaves at least half of it."""
    return max(slurmd_timeout_seconds - margin_seconds, slurmd_timeout_seconds / 2)


def why_stop(
    members: Iterable[str],
    ages: Mapping[str, float],
    daemon_age: float,
    authority: float,
    config: LeaseConfig,
) -> str:
    """Empty while the ranks may run, else the reason in words."""
    if config.authority_seconds and authority > config.authority_seconds:
        return (
            f"neither unicrond nor slurmctld answered any agent for {authority:.0f} s:"
            " Slurm may start this job elsewhere"
        )
    if daemon_age <= config.lease_seconds:
        return ""
    silent = sorted(n for n in members if ages.get(n, NEVER) > config.lease_seconds)
    if not silent:
        return ""
    shown = ", ".join(silent[:3]) + (f" and {len(silent) - 3} more" if len(silent) > 3 else "")
    return f"heard neither unicrond nor {shown} for {config.lease_seconds:g} s"
