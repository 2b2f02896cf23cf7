"""The best division of all pools.

Where every run may use one pool only, and each account that has limits has its runs in one, each
pool is a problem of its own and is solved exactly (allocator, accounts); else all of them are one
integer program (program). Under limits that bind, a pool too large for the exact recurrence in
reasonable time is one too.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.accounts import divide_within
from planner.allocator import Division, divide
from planner.objective import Claim, Gains, Plan, Problem, Proof, Share, gains
from planner.program import solve_program

TIME_LIMIT_SECONDS = 8.0  # for the integer program
MOST_STEPS = 10**10  # of the recurrence under limits: some six seconds


def solve(problem: Problem, time_limit_seconds: float = TIME_LIMIT_SECONDS) -> Plan:
    """Raises Infeasible where floors do not fit, and BadInput."""
    if problem.claims and not _apart(problem):
        return solve_program(problem, time_limit_seconds)
    shares, gain = dict[int, Share](), 0.0
    for name in problem.pools:
        if claims := [claim for claim in problem.claims if name in claim.throughput]:
            worth = gains(problem, claims, name)
            division = _divided(problem, claims, name, worth)
            gain += division.gain * worth.unit
            for claim, size in zip(claims, division.sizes, strict=True):
                shares[claim.run_id] = Share(name, size)
    return Plan(tuple(shares[claim.run_id] for claim in problem.claims), gain, Proof.EXACT)


def _apart(problem: Problem) -> bool:
    """Whether each pool is a problem of its own."""
    if any(len(claim.throughput) > 1 for claim in problem.claims):
        return False
    limited = [claim for claim in problem.claims if claim.account in problem.accounts]
    steps = sum(problem.pools[claim.pool].workers ** 2 for claim in limited)
    return steps <= MOST_STEPS and len({(c.account, c.pool) for c in limited}) == len(
        {c.account for c in limited}
    )


def _divided(problem: Problem, claims: Sequence[Claim], pool: str, worth: Gains) -> Division:
    held, workers = [claim.held for claim in claims], problem.pools[pool].workers
    accounts = [claim.account for claim in claims]
    if problem.accounts.keys().isdisjoint(accounts):
        return divide(worth.table, held, workers)
    return divide_within(worth.table, held, workers, accounts, problem.accounts)
