"""The chosen division beside its alternatives: what each yields, costs, and when it has paid back.

    stay      runs in trouble (workers lost, or processes failed) stand still, the others go on
    restart   those in trouble start again where they are; only where no worker is lost
    swap      they get spares for their lost workers
    shrink    they go on with the largest legal size that they still hold
    requeue   they give back everything and wait in Slurm's queue
    redivide  what the best division says, for all runs

WAF is sum F(t, x') in FLOP/s, price sum 1(t, x -> x') F(t, x) D_transition in FLOP, gain is
WAF D_running - margin price, with WAF less the noise of what changes; pay-back is the price over
what WAF exceeds that of `stay` by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from planner.objective import Change, Claim, Plan, Problem, Share
from planner.pools import TIME_LIMIT_SECONDS, solve

NAMED_CHANGES = 4  # in the reason; the rest is counted

Shares = tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """Something that was weighed. `obstacle` says why it cannot be done, "" if it can."""

    name: str
    shares: Shares
    waf: float
    price: float
    gain: float
    payback_seconds: float | None
    obstacle: str = ""


@dataclass(frozen=True, slots=True)
class Advice:
    plan: Plan
    choice: Option
    options: tuple[Option, ...]  # the choice is one of them
    reason: str


def advise(problem: Problem, time_limit_seconds: float = TIME_LIMIT_SECONDS) -> Advice:
    """Solves the problem and says why. Raises Infeasible where floors do not fit."""
    plan = solve(problem, time_limit_seconds)
    stay = _weigh(problem, "stay", _shares(problem, {}))
    others = [
        _weigh(problem, name, shares, stay)
        for name, shares in (*_plain_options(problem), ("redivide", plan.shares))
    ]
    candidates = others if _hurt(problem) else [stay, *others]  # a run in trouble cannot just go on
    choice = next(o for o in candidates if o.shares == plan.shares and not o.obstacle)
    second = max(
        (o for o in candidates if o.shares != plan.shares and not o.obstacle),
        key=lambda option: option.gain,
        default=None,
    )
    return Advice(plan, choice, (stay, *others), _reason(problem, choice, second))


def _hurt(problem: Problem) -> dict[int, Claim]:
    """The claims in trouble, by their place in the problem."""
    return {i: c for i, c in enumerate(problem.claims) if c.size and (c.faulty or c.broken)}


def _shares(problem: Problem, sizes: Mapping[int, int]) -> Shares:
    """Everyone's present size, but for those in trouble: theirs from `sizes`, else nothing."""
    hurt = _hurt(problem)
    return tuple(
        Share(claim.pool, sizes.get(i, 0) if i in hurt else claim.size)
        for i, claim in enumerate(problem.claims)
    )


def _plain_options(problem: Problem) -> Iterator[tuple[str, Shares]]:
    hurt = _hurt(problem)
    if not hurt:
        return
    faulty = any(claim.faulty for claim in hurt.values())
    yield ("swap" if faulty else "restart"), _shares(problem, {i: c.size for i, c in hurt.items()})
    yield "requeue", _shares(problem, {})
    if faulty:
        yield "shrink", _shares(problem, {i: _still_legal(c) for i, c in hurt.items()})


def _still_legal(claim: Claim) -> int:
    """The largest size it may have of what it holds."""
    return next(
        size for size in range(claim.held, -1, -1) if size == 0 or claim.allows(claim.pool, size)
    )


def _weigh(problem: Problem, name: str, shares: Shares, stay: Option | None = None) -> Option:
    pairs = list(zip(problem.claims, shares, strict=True))
    waf = sum(claim.rate(share.pool, share.size) for claim, share in pairs)
    price = sum(claim.price(share.pool, share.size) for claim, share in pairs) if stay else 0.0
    doubt = sum(claim.doubt(problem.noise, share.pool, share.size) for claim, share in pairs)
    more = waf - stay.waf if stay else 0.0
    return Option(
        name, shares, waf, price,
        gain=(waf - doubt) * problem.running_seconds - problem.margin * price,
        payback_seconds=price / more if more > 0 else None,
        obstacle=_obstacle(problem, shares) if stay else "",
    )  # fmt: skip


def _obstacle(problem: Problem, shares: Shares) -> str:
    for claim, share in zip(problem.claims, shares, strict=True):
        if not claim.allows(share.pool, share.size):
            return f"{share.size} is no legal size of run {claim.run_id}"
    used, of_account = Counter[str](), Counter[str]()
    for claim, share in zip(problem.claims, shares, strict=True):
        used[share.pool] += share.size
        of_account[claim.account] += share.size
    for name, pool in problem.pools.items():
        if used[name] > pool.workers:
            return f"{used[name]} workers needed in pool {name}, {pool.workers} are there"
    for name, limits in problem.accounts.items():
        if not limits.allow(of_account[name]):
            return f"{of_account[name]} workers are not within the limits of account {name}"
    return ""


def _reason(problem: Problem, choice: Option, second: Option | None) -> str:
    lasting = duration(problem.running_seconds)
    changes = describe(problem, choice.shares)
    if not changes:
        return f"every run keeps what it has: no change pays back its price within {lasting}"
    said = changes[:NAMED_CHANGES]
    if len(changes) > NAMED_CHANGES:
        said.append(f"{len(changes) - NAMED_CHANGES} more runs change")
    if choice.payback_seconds is not None:
        said.append(f"paid back in {duration(choice.payback_seconds)} of {lasting} expected")
    if second and choice.gain > 0:
        behind = 100 * (1 - second.gain / choice.gain)
        words = f"{behind:.2g}" if behind < 10 else f"{behind:.0f}"
        said.append(f"the next best, {second.name}, is worth {words} % less")
    return "; ".join(said)


def describe(problem: Problem, shares: Shares) -> list[str]:
    """One sentence for each run that does not simply go on."""
    return list(filter(None, map(_sentence, problem.claims, shares)))


def _sentence(claim: Claim, share: Share) -> str:
    run, change = f"run {claim.run_id}", claim.change(share.size, share.pool)
    match change:
        case Change.KEEP:
            return ""
        case Change.RESTART:
            return f"{run} restarts on its {claim.size} workers"
        case Change.SWAP:
            return f"{run} stays at {claim.size} workers with {claim.faulty} replaced"
        case Change.START:
            return f"{run} starts with {share.size} workers of {share.pool}"
        case Change.REQUEUE if not share.size:
            return f"{run} gives back its workers and waits in the queue"
    before, after = claim.present_rate, claim.rate(share.pool, share.size)
    how = {Change.SHRINK: "shrinks", Change.GROW: "grows"}.get(change, "is requeued to go")
    where = f" of {share.pool}" if share.pool != claim.pool else ""
    effect = f" ({after / before - 1:+.0%} of its FLOP/s)" if before else ""
    return f"{run} {how} from {claim.size} to {share.size} workers{where}{effect}"


def duration(seconds: float) -> str:
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"
