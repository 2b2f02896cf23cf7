"""Many ranks, one root. Pure.

Each report is read by itself, then weighed: what a text says of its own reporter, what others say
of it, how far it came, whether it fell silent, and when. The heaviest is the root; its victims
are explained by it.

    evidence                               weight
    the kernel, a device or Slurm          90-100
    named dead, or its own error            70-85
    a node that says nothing                   75
    behind in a collective, named missing      60
    a rank that says nothing                   50
    timed out                                  20
    lost a peer                                10

May touch: this package.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from detectors import mentions, progress
from detectors.classification import clipped, judge
from detectors.gpu import stuck_rows
from detectors.mentions import Mentions
from detectors.rules import NONE, SEV1, SEV2, Finding
from detectors.verdict import HARMLESS, Blame, Kind, Tier, Verdict
from unicrond.model.incident import Severity

SKEW_SECONDS = 1.0  # clocks of two nodes differ by this much at least
APART_SECONDS = 60.0  # what happens later than this has reasons of its own
OWN = {
    Tier.DECISIVE: 100,
    Tier.HARDWARE: 95,
    Tier.PROCESS: 80,
    Tier.SYMPTOM: 70,
    Tier.TIMEOUT: 20,
    Tier.VICTIM: 10,
    Tier.SUMMARY: 65,
    Tier.HINT: 40,
}
NAMED_NODE, NAMED_DEAD, PROGRAM, BEHIND, NAMED_MISSING, LOST_PEER = 97, 85, 80, 62, 60, 15
SILENT_NODE, SILENT_RANK = 75, 50
STORAGE = 61  # the server's fault perhaps, and yet why this rank holds the others up
ELSEWHERE = 48
FLAPPED = 66
STUCK = 55  # its own watchdog says that it stands still
ABSENT = 45  # the one rank that nobody heard of
OPEN_SYMPTOM = 40  # an error that may as well be another's fault


@dataclass(frozen=True, slots=True)
class Report:
    rank: int | None
    node: str
    text: str
    at: float | None = None
    label: str = ""  # what the reporter calls itself where that is no rank


@dataclass(frozen=True, slots=True)
class Diagnosis:
    root_rank: int | list[int] | None
    root_node: str | None
    kind: Kind
    severity: Severity
    confidence: float
    reason: str


@dataclass(frozen=True, slots=True)
class Suspect:
    rank: int | None
    node: str
    weight: int
    at: float | None
    verdict: Verdict
    words: str


@dataclass(frozen=True, slots=True)
class Seen:
    report: Report
    found: Finding | None
    named: Mentions

    @property
    def verdict(self) -> Verdict:
        return HARMLESS if self.found is None else self.found.verdict

    @property
    def flapped(self) -> bool:
        """A port that came back is no failure by itself, but what others lost may be its doing."""
        return self.verdict.kind is Kind.FLAPPING

    @property
    def waits(self) -> bool:
        return self.found is not None and self.found.tier in (Tier.TIMEOUT, Tier.VICTIM)


def diagnose(reports: Sequence[Report]) -> Diagnosis:
    seen = _again([_read(report) for report in reports])
    if (planned := _planned(seen)) is not None:
        return planned
    suspects = [*_own(seen), *_named(seen), *_progress(seen), *_elsewhere(seen), *_silent(seen),
                *_idle(seen)]  # fmt: skip
    if not any(one.verdict.is_failure for one in suspects):
        return Diagnosis(None, None, Kind.NON_FAILURE, NONE, 0.0, "no report speaks of a failure")
    if (common := _common_fault(seen, suspects)) is not None:
        return common
    ranked = sorted(suspects, key=_order)
    return _conclude(_long_before(ranked, seen), seen)


def _long_before(ranked: list[Suspect], seen: list[Seen]) -> list[Suspect]:
    """What killed a rank, and cut others off, is not explained by what came a minute later."""
    heaviest = ranked[0]
    for one in sorted(ranked, key=lambda one: float("inf") if one.at is None else one.at):
        if one.at is None or heaviest.at is None or one.at + APART_SECONDS > heaviest.at:
            break
        until = one.at + APART_SECONDS
        if OWN[Tier.PROCESS] <= one.weight and any(
            other.waits and other.report.at is not None and one.at <= other.report.at < until
            for other in seen
        ):
            return [one, *(rest for rest in ranked if rest is not one)]
    return ranked


def _planned(seen: list[Seen]) -> Diagnosis | None:
    """An end that Slurm planned explains all that is printed with it, if nothing broke before."""
    broken = any(
        one.verdict.is_failure
        and one.found.tier >= Tier.TIMEOUT
        and one.verdict.blame is Blame.SELF
        for one in seen
        if one.found
    )
    failed = any(one.verdict.is_failure for one in seen)
    for one in seen:
        by_slurm = one.verdict.kind in (Kind.TIME_LIMIT, Kind.PREEMPTION) and not broken
        if by_slurm or (one.verdict.kind is Kind.CANCELLED and not failed):
            words = f"node {one.report.node} prints {one.verdict.evidence!r}"
            return Diagnosis(None, one.report.node or None, one.verdict.kind, NONE, 0.8, words)
    return None


def _read(report: Report) -> Seen:
    report = replace(report, text=clipped(report.text), node=report.node.split(" (")[0])
    if report.rank is None and not report.label:
        report = replace(report, rank=mentions.own_rank(report.text))
    return Seen(report, judge("", report.text), mentions.read(report.text))


def _again(seen: list[Seen]) -> list[Seen]:
    """A port that goes down where one came back before flaps."""
    flapped = {one.report.node for one in seen if one.flapped}
    return [
        replace(one, found=replace(one.found, verdict=replace(one.verdict, kind=Kind.FLAPPING)))
        if one.found and one.verdict.kind is Kind.PORT_DOWN and one.report.node in flapped
        else one
        for one in seen
    ]


def _order(suspect: Suspect) -> tuple[int, float, int]:
    """Heaviest first; then the earliest, where clocks can tell; then the lowest rank."""
    at = float("inf") if suspect.at is None else round(suspect.at / SKEW_SECONDS, 3)
    return -suspect.weight, at, -1 if suspect.rank is None else suspect.rank


def _own(seen: list[Seen]) -> list[Suspect]:
    suspects = []
    for one in seen:
        if one.found is None or not (one.verdict.is_failure or one.flapped):
            continue
        suspects.append(
            Suspect(one.report.rank, one.report.node, _own_weight(one.found), one.report.at,
                    one.verdict, f"prints {one.verdict.evidence!r}")
        )  # fmt: skip
    return suspects


def _own_weight(found: Finding) -> int:
    verdict, weight = found.verdict, OWN[found.tier]
    if verdict.kind is Kind.FLAPPING and verdict.rule != "port.down":
        return FLAPPED
    if verdict.kind is Kind.STORAGE:
        return max(STORAGE, weight if verdict.blame is Blame.SELF else 0)
    if verdict.blame is Blame.PEER:
        return min(weight, OWN[Tier.VICTIM])
    if verdict.kind in (Kind.USER_BUG, Kind.CONFIGURATION):
        return max(weight, PROGRAM)
    if verdict.kind is Kind.HANG and verdict.blame is Blame.SELF:
        return max(weight, STUCK)
    if found.tier is Tier.SYMPTOM and verdict.blame is Blame.UNKNOWN:
        return OPEN_SYMPTOM
    return weight


def _named(seen: list[Seen]) -> list[Suspect]:
    """What reporters say of others; who is named and speaks too is met with both weights."""
    nodes = {one.report.rank: one.report.node for one in seen if one.report.rank is not None}
    known = {one.report.node for one in seen if one.report.node}
    found = []
    for one in seen:
        verdict, at = one.verdict, one.report.at
        for rank in one.named.died:
            node = nodes.get(rank, one.report.node if rank == one.report.rank else "")
            found.append(Suspect(rank, node, NAMED_DEAD, at, verdict, "is named as the first dead"))
        for rank in one.named.missing - {one.report.rank}:
            found.append(
                Suspect(rank, nodes.get(rank, ""), NAMED_MISSING, at, verdict,
                        "is named as missing in a collective")
            )  # fmt: skip
        for name in one.named.failed_nodes:
            node = next((node for node in known if mentions.same_host(name, node)), name)
            found.append(
                Suspect(_only_rank(seen, node), node, NAMED_NODE, at, _lost(verdict),
                        "is named as a failed node")
            )  # fmt: skip
        found.extend(_peers(one, known, seen))
    return found


def _peers(one: Seen, known: set[str], seen: list[Seen]) -> list[Suspect]:
    """A victim's other end, unless that is its own node (its own proxy thread, mostly)."""
    ends = {
        node
        for name in one.named.lost_peers
        for node in known
        if mentions.same_host(name, node) and node != one.report.node
    }
    if not one.waits and one.verdict.blame is not Blame.PEER:
        return []
    return [
        Suspect(_only_rank(seen, node), node, LOST_PEER, one.report.at, one.verdict,
                "is the other end of a connection that others lost")
        for node in sorted(ends)
    ]  # fmt: skip


def _only_rank(seen: list[Seen], node: str) -> int | None:
    ranks = {one.report.rank for one in seen if one.report.node == node}
    return next(iter(ranks)) if len(ranks) == 1 else None


def _lost(verdict: Verdict) -> Verdict:
    return replace(verdict, kind=Kind.LOST, severity=SEV1, blame=Blame.SELF)


def _progress(seen: list[Seen]) -> list[Suspect]:
    by_rank = {
        one.report.rank: progress.steps(one.report.text)
        for one in seen
        if one.report.rank is not None
    }
    standing = progress.compare({rank: steps for rank, steps in by_rank.items() if steps})
    idle = {one.report.rank for one in seen if progress.is_idle(one.report.text)}
    if idle and standing.members - idle:
        late, words = frozenset(idle), "is in no collective while the others wait in one"
    else:
        late, words = standing.behind, f"is {standing.margin} collectives behind"
    if standing.at_odds and len(standing.odd) == 1:
        late, words = standing.odd, "is in another collective than the rest"
    return [
        Suspect(one.report.rank, one.report.node, BEHIND, one.report.at,
                _at_odds(one) if late is standing.odd else _hang(one), words)
        for one in seen
        if one.report.rank in late
    ]  # fmt: skip


def _at_odds(one: Seen) -> Verdict:
    """The program sends a rank elsewhere, if nothing else is wrong with it."""
    if one.verdict.is_failure and not one.waits:
        return one.verdict
    return Verdict(Kind.USER_BUG, SEV2, Blame.SELF, True, "diagnosis.at_odds", "")


def _hang(one: Seen) -> Verdict:
    if one.verdict.is_failure:
        return one.verdict
    return Verdict(Kind.HANG, SEV2, Blame.SELF, False, "diagnosis.behind", "")


def _elsewhere(seen: list[Seen]) -> list[Suspect]:
    """Most wait in a collective; the few who go on with something else keep them waiting."""
    places = [(one, progress.place(one.report.text)) for one in seen]
    waiting = sum(1 for one, place in places if place == "collective" or _timed_out(one))
    away = [
        one
        for one, place in places
        if place == "elsewhere" or (not place and one.found is None and one.report.text.strip())
    ]
    if not away or waiting < 2 * len(away) or waiting + len(away) < len(seen):
        return []
    return [
        Suspect(one.report.rank, one.report.node, ELSEWHERE, one.report.at, _hang(one),
                "is elsewhere while the others wait in a collective")
        for one in away
    ]  # fmt: skip


def _idle(seen: list[Seen]) -> list[Suspect]:
    """Whose GPU does nothing while those of the others spin at low power, waiting."""
    gpus = [(one, *stuck_rows(one.report.text.lower())) for one in seen]
    if not any(waiting for _, waiting, _, _ in gpus):
        return []
    return [
        Suspect(one.report.rank, one.report.node, BEHIND, one.report.at, _hang(one),
                "has an idle GPU while those of the others wait")
        for one, waiting, idle, _ in gpus
        if idle and not waiting
    ]  # fmt: skip


def _timed_out(one: Seen) -> bool:
    return one.found is not None and one.found.tier is Tier.TIMEOUT


def _silent(seen: list[Seen]) -> list[Suspect]:
    """Who says nothing while others wait; a whole node that says nothing is the node's fault."""
    if not any(one.waits or one.verdict.is_failure for one in seen):
        return []
    quiet = [one for one in seen if not one.report.text.strip()]
    cut_off = all(
        one.found is None or one.verdict.kind in (Kind.LOST, Kind.REFUSED) for one in seen
    )
    node_kind = Kind.LOST if cut_off else Kind.HANG
    suspects = [
        Suspect(one.report.rank, one.report.node,
                SILENT_NODE if one.report.rank is None else SILENT_RANK, None,
                Verdict(*((node_kind, SEV1) if one.report.rank is None else (Kind.HANG, SEV2)),
                        Blame.SELF, False, "diagnosis.silent", ""), "is silent while others wait")
        for one in quiet
    ]  # fmt: skip
    return suspects or _absent(seen)


def _absent(seen: list[Seen]) -> list[Suspect]:
    """All ranks but one reported that they wait: it is the one."""
    ranks = {one.report.rank for one in seen if one.report.rank is not None}
    if len(ranks) < 3 or not all(one.waits for one in seen):
        return []
    missing = set(range(max(ranks) + 1)) - ranks
    if all(one.verdict.rule == "store.lost" for one in seen) and 0 in missing:
        missing = {0}  # the store's host
    if len(missing) != 1:
        return []
    verdict = Verdict(Kind.HANG, SEV2, Blame.SELF, False, "diagnosis.absent", "")
    return [Suspect(missing.pop(), "", ABSENT, None, verdict, "is the only rank without a report")]


def _common_fault(seen: list[Seen], suspects: list[Suspect]) -> Diagnosis | None:
    """Every rank at odds, or every rank the same fault of the program: no rank is the root."""
    heaviest = max(suspect.weight for suspect in suspects)
    if heaviest > OWN[Tier.PROCESS] or len(seen) < 2:
        return None
    ranks = {
        one.report.rank: progress.steps(one.report.text)
        for one in seen
        if one.report.rank is not None
    }
    standing = progress.compare({rank: steps for rank, steps in ranks.items() if steps})
    at_odds = standing.at_odds and len(standing.odd) != 1 and heaviest <= BEHIND
    kinds = {one.verdict.kind for one in seen}
    same = kinds == {Kind.USER_BUG} and not _spread(seen)
    if not (at_odds or same):
        return None
    words = "are in different collectives" if at_odds else "fail alike"
    reason = f"all {len(seen)} ranks {words}: the program is wrong, no rank is"
    return Diagnosis(None, _one_node(seen), Kind.USER_BUG, SEV2, 0.7, reason)


def _spread(seen: list[Seen]) -> bool:
    """Whether somebody failed clearly before the others."""
    times = sorted(one.report.at for one in seen if one.report.at is not None)
    return len(times) > 1 and times[1] - times[0] > SKEW_SECONDS


def _one_node(seen: list[Seen]) -> str | None:
    nodes = Counter(one.report.node for one in seen)
    return next(iter(nodes)) if len(nodes) == 1 else None


def _conclude(ranked: list[Suspect], seen: list[Seen]) -> Diagnosis:
    root = ranked[0]
    if root.weight <= OWN[Tier.TIMEOUT]:
        return _undecided(root, seen)
    if root.rank is None:
        root = replace(root, rank=_rank_on(root.node, seen))
    alike = _alike(root, ranked, seen)
    others = [one for one in ranked if (one.rank, one.node) != (root.rank, root.node)]
    rival = max((one.weight for one in others), default=0)
    confidence = min(0.99, 0.5 + root.weight / 250 + (root.weight - rival) / 400)
    return Diagnosis(
        alike if len(alike) > 1 else root.rank,
        root.node or None,
        root.verdict.kind,
        root.verdict.severity,
        round(confidence, 2),
        f"{_name(root)} {root.words}{_rest(root, others)}",
    )


def _rank_on(node: str, seen: list[Seen]) -> int | None:
    """A node's fault hits the rank there that fails of itself or is silent, if it is just one."""
    ranks = {
        one.report.rank
        for one in seen
        if node and one.report.node == node and one.report.rank is not None
        and (not one.report.text.strip() or (one.verdict.is_failure and not one.waits))
    }  # fmt: skip
    return next(iter(ranks)) if len(ranks) == 1 else None


def _alike(root: Suspect, ranked: list[Suspect], seen: list[Seen]) -> list[int]:
    """Several ranks may hold up the rest alike; not so many that they are the rest."""
    if root.weight != BEHIND:
        return []
    ranks = {one.rank for one in ranked if one.weight == BEHIND and one.rank is not None}
    return sorted(ranks) if 3 * len(ranks) < len(seen) else []


def _undecided(root: Suspect, seen: list[Seen]) -> Diagnosis:
    """Everybody waits or lost a peer: the first to lose one stands nearest to the root."""
    weight = root.weight == LOST_PEER or len(seen) == 1
    return Diagnosis(
        root.rank if weight else None,
        root.node if weight else None,
        root.verdict.kind,
        root.verdict.severity,
        0.3 if weight else 0.1,
        f"all {len(seen)} reports are of victims; {_name(root)} {root.words}",
    )


def _name(suspect: Suspect) -> str:
    who = "" if suspect.rank is None else f"rank {suspect.rank}"
    where = f"node {suspect.node}" if suspect.node else ""
    return " on ".join(part for part in (who, where) if part) or "a reporter without a name"


def _rest(root: Suspect, others: list[Suspect]) -> str:
    victims = {one.rank if one.rank is not None else one.node for one in others}
    count = len(victims - {root.rank})
    return f"; {count} other{'s' if count != 1 else ''} explained by it" if count else ""
