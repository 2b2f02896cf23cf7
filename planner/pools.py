"""The best division of all pools.

Where every run may use one pool only and no account has limits, each pool is a problem of its own
and is solved exactly (allocator); else all of them are one integer program (program).
"""

from __future__ import annotations

from planner.allocator import divide
from planner.objective import Plan, Problem, Proof, Share, gains
from planner.program import solve_program

TIME_LIMIT_SECONDS = 8.0  # for the integer program


def solve(problem: Problem, time_limit_seconds: float = TIME_LIMIT_SECONDS) -> Plan:
    """Raises Infeasible where floors do not fit, and BadInput."""
    shared = problem.accounts or any(len(claim.throughput) > 1 for claim in problem.claims)
    if shared and problem.claims:
        return solve_program(problem, time_limit_seconds)
    shares, gain = dict[int, Share](), 0.0
    for name, pool in problem.pools.items():
        if claims := [claim for claim in problem.claims if name in claim.throughput]:
            worth = gains(problem, claims, name)
            division = divide(worth.table, [claim.held for claim in claims], pool.workers)
            gain += division.gain * worth.unit
            for claim, size in zip(claims, division.sizes, strict=True):
                shares[claim.run_id] = Share(name, size)
    return Plan(tuple(shares[claim.run_id] for claim in problem.claims), gain, Proof.EXACT)
