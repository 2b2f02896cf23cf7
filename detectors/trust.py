"""How far a rule is believed: its record on this cluster, held against its bar. Pure.

A rule acts while the lower end of what its record allows is at or above its bar; below it only
observes. That end is Wilson's (E. B. Wilson, J. Am. Stat. Assoc. 22, 1927), one-sided at 95 %, of
n incidents that turned out one way or the other, a share p of them confirmed:

    (p + z²/2n - z √(p(1-p)/n + z²/4n²)) / (1 + z²/n),    z = 1.645

Each rule starts with a credit, as if so many of its incidents had been confirmed before; what is
undecided counts nowhere. A user's agents may lie, and so may the user: what rests on their word
counts fully for their own runs, and for everybody else's at most once each way for each rule.

    no credit given, bar 0        what happened: a process ended, a lease ran out, Slurm said so
    two refuted in a row          a hang, or an error that was printed or raised: only observed
    three refuted in a row        what the driver, the kernel or a device says: only observed
    25 confirmed in a row         before a rule without a row here acts for the first time

May touch: this package's tables, unicrond.model.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from math import sqrt

from detectors import exits, guess, xid
from detectors.classification import RULES
from detectors.verdict import Kind
from unicrond.model.incident import Proof, Review, Severity

Z = 1.645
MOST_REVIEWS = 10_000  # of the newest incidents: what is older says little of today's rules
OF_OTHERS = 1  # what one user's word counts, each way, for the runs of others


@dataclass(frozen=True, slots=True)
class Bar:
    needs: float  # 0: it always acts
    credit: int  # incidents taken as confirmed before the first one here
    halts: bool = False  # it says that training stands still: progress refutes it


FACT = Bar(0.0, 0)
SAID = Bar(0.6, 8, halts=True)
DEVICE = Bar(0.75, 20)
NEW = Bar(0.9, 0)

# By a rule's whole name, or by what stands before its first dot.
BARS: Mapping[str, Bar] = {
    # Somebody saw it end. A restart is needed, whatever it is called.
    "exit": FACT,
    "agent": FACT,
    "slurm.took": FACT,
    "slurm.ended": FACT,
    # Past the lease the ranks there have stopped, whether or not the node lives.
    "silence": Bar(0.0, 0, halts=True),
    # It restarts a run that may be well: an evaluation that nobody announced looks just so.
    "hang": SAID,
    # It restarts a run before its rank has ended: what was raised might be caught after all.
    "exception": SAID,
    # It may drain a node, so it starts high; and what a driver or a device says of itself is seldom
    # wrong, so it takes more to lose it. A fault may spare training: progress refutes nothing.
    **dict.fromkeys(
        ("xid", "sxid", "gpu", "dcgm", "nvlink", "fabric", "pcie", "memory", "kernel", "oom",
        "host", "dma",
         "verbs", "port", "link", "ib", "nvml", "infiniband", "cgroup", "edac", "sensor",
         "rocm"),
        DEVICE,
    ),
    # Slow is not broken, and a loss may rise for good reasons: people first. That training goes on
    # refutes nothing.
    **dict.fromkeys(("straggler", "iterations", "loss", "nan"), NEW),
}  # fmt: skip

# What is no text: rule to kind.
SENSED: Mapping[str, Kind] = {
    "silence.lost": Kind.LOST,
    "agent.ended": Kind.EXITED,
    "agent.lease": Kind.LOST,
    "agent.start": Kind.EXITED,
    "slurm.took": Kind.LOST,
    "slurm.ended": Kind.EXITED,
    "hang.halted": Kind.HANG,
    "hang.elsewhere": Kind.HANG,
    "hang.behind": Kind.HANG,
    "hang.overdue": Kind.HANG,
    "exception.raised": Kind.SOFTWARE,
    "straggler.own_time": Kind.STRAGGLER,
    "iterations.slower": Kind.STRAGGLER,
    "loss.not_a_number": Kind.NAN,
}
SEEN_BY = {
    "nvml": (Kind.GPU_LOST, Kind.ECC, Kind.ROW_REMAP, Kind.NVLINK, Kind.GPU_DRIVER, Kind.THROTTLE,
             Kind.PCIE_AER),
    "infiniband": (Kind.PORT_DOWN, Kind.FLAPPING, Kind.NETWORK),
    "cgroup": (Kind.HOST_OOM,),
    "edac": (Kind.HOST_MEMORY,),
}  # fmt: skip
# Rules that are functions: name to kind.
FOUND: Mapping[str, Kind] = {
    "exit.code": Kind.EXITED, "exit.killed": Kind.HOST_OOM, "collective.all_joined": Kind.USER_BUG,
    "cuda.oom": Kind.GPU_OOM, "gpu.stuck": Kind.HANG, "oom.kill": Kind.HOST_OOM,
    "memory.bank": Kind.HOST_MEMORY, "kernel.segfault": Kind.EXITED, "link.flap": Kind.FLAPPING,
    "port.down": Kind.PORT_DOWN, "ib.local": Kind.DMA, "ib.remote": Kind.DMA,
    "ib.completion": Kind.NETWORK, "ib.access": Kind.DMA, "ib.fatal": Kind.PORT_DOWN,
    "python.other": Kind.SOFTWARE, "slurm.common_segfault": Kind.USER_BUG, "nan.value": Kind.NAN,
    "loss.spike": Kind.NAN, "unknown": Kind.SOFTWARE, "health.check": Kind.SOFTWARE,
    **{f"guess.{name}": kind for name, _, kind, _, _ in guess.TABLE},
}  # fmt: skip


@cache
def catalogue() -> Mapping[str, Kind]:
    """Every rule that can open an incident, and the kind that it yields. A switch's own errors are
    named by their number as they come (sxid.N)."""
    xids = (x for x in xid.CATALOGUE.values() if xid.SEVERITY[x.origin] is not Severity.NONE)
    return {
        **{rule.name: rule.kind for rule in RULES if rule.severity is not Severity.NONE},
        **{f"xid.{x.code}": x.kind for x in xids},
        **{f"exit.{name.lower()}": Kind.EXITED for name in exits.NAMES.values()},
        **{sensed(source, kind): kind for source, kinds in SEEN_BY.items() for kind in kinds},
        **FOUND,
        **SENSED,
    }  # fmt: skip


def sensed(source: str, kind: Kind) -> str:
    """The rule of what a sensor saw, where no line of text says more."""
    return f"{source if source in SEEN_BY else 'sensor'}.{kind.name.lower()}"


def bar_of(rule: str) -> Bar:
    named = BARS.get(rule) or BARS.get(rule.partition(".")[0])
    return named or (SAID if rule in catalogue() else NEW)


def lower_bound(confirmed: int, refuted: int) -> float:
    """0 where nothing is known."""
    n = confirmed + refuted
    if n == 0:
        return 0.0
    p, square = confirmed / n, Z * Z / n
    return (p + square / 2 - Z * sqrt(p * (1 - p) / n + square / 4 / n)) / (1 + square)


@dataclass(frozen=True, slots=True)
class Record:
    confirmed: int = 0
    refuted: int = 0
    undecided: int = 0

    def clears(self, bar: Bar) -> bool:
        return lower_bound(self.confirmed + bar.credit, self.refuted) >= bar.needs


def held(rule: str, record: Record) -> str:
    """Why this rule only observes, "" while it acts."""
    bar = bar_of(rule)
    if record.clears(bar):
        return ""
    judged = record.confirmed + record.refuted
    return (
        f"rule {rule} is below its bar ({record.confirmed} of {judged} confirmed, "
        f"needs {bar.needs:.2f})"
    )


class Ledger:
    """What became of the newest incidents, one review each."""

    def __init__(self, reviews: Iterable[Review] = ()) -> None:
        self._reviews: dict[int, Review] = {}
        self._counts: dict[str, Counter[tuple[Proof, str]]] = defaultdict(Counter)
        for review in reviews:
            self.put(review)

    def put(self, review: Review) -> None:
        """The last word on an incident replaces the one before."""
        before = self._reviews.get(review.incident_id)
        if before is not None:
            self._count(before, -1)
        self._reviews[review.incident_id] = review
        self._count(review, 1)
        if len(self._reviews) > MOST_REVIEWS:
            self._count(self._reviews.pop(next(iter(self._reviews))), -1)

    def _count(self, review: Review, by: int) -> None:
        self._counts[review.rule][review.proof, review.owner] += by

    def of(self, incident_id: int) -> Review | None:
        return self._reviews.get(incident_id)

    def rules(self) -> set[str]:
        return {rule for rule, counts in self._counts.items() if any(counts.values())}

    def owners(self, rule: str) -> list[str]:
        """Users on whose word something rests."""
        counts = self._counts.get(rule, Counter())
        return sorted({owner for (_, owner), n in counts.items() if n and owner})

    def whole(self, rule: str) -> Record:
        """Everything, whoever said it."""
        return self._record(rule, lambda owner, n: n)

    def seen_by(self, rule: str, owner: str) -> Record:
        """As it counts for the runs of one user, or for the cluster ("")."""
        return self._record(rule, lambda who, n: n if who in ("", owner) else min(n, OF_OTHERS))

    def _record(self, rule: str, weigh: Callable[[str, int], int]) -> Record:
        sums: Counter[Proof] = Counter()
        for (proof, owner), n in self._counts.get(rule, Counter()).items():
            sums[proof] += weigh(owner, n)
        return Record(sums[Proof.CONFIRMED], sums[Proof.REFUTED], sums[Proof.UNDECIDED])
