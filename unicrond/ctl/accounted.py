"""Slurm's accounting beside the ledger, job by job. Pure.

Rows of `sacct --duplicates` overlap: a job that was resized has a row for each size (RESIZING),
each of which may claim to last until the job's end; a job whose end got lost (a runaway) has a row
that never ends. So the rows of a job are put in order, and each ends where the next one begins; one
that never ends counts until the end only if Slurm still lists the job, else it is only named.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from unicrond.model.accounting import Spell

MICROSECONDS = 1_000_000


@dataclass(slots=True)
class Accounted:
    """GPU-seconds of jobs with GPUs. `jobs`: by job, accounting and ledger."""

    accounting: float = 0.0
    ledger: float = 0.0
    jobs: dict[int, dict[str, float]] = field(default_factory=dict)
    runaway: list[int] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"unwatched": self.accounting - self.ledger}

    @staticmethod
    def sentence(told: Mapping[str, Any]) -> str:
        hours = {name: told[name] / 3600 for name in ("accounting", "ledger", "unwatched")}
        runaway = ", ".join(map(str, told["runaway"]))
        return (
            f"sacct has {hours['accounting']:.2f} GPU-hours of {len(told['jobs'])} jobs, the "
            f"ledger {hours['ledger']:.2f} of these; {hours['unwatched']:.2f} were not watched"
            + (f"; rows that never end, not counted: {runaway}" if runaway else "")
        )


def accounted(
    spells: Iterable[Spell], rows: Iterable[Mapping[str, Any]], live: Collection[int],
    began: float, ended: float,
) -> Accounted:  # fmt: skip
    """`rows`: of the ledger by job."""
    of_job: defaultdict[int, list[Spell]] = defaultdict(list)
    for spell in spells:
        if spell.gpus:
            of_job[spell.job_id].append(spell)
    ledger = {int(row["key"]): float(row["gpu_seconds"]) for row in rows}
    found = Accounted()
    for job_id in sorted(of_job):
        amount, runaway = held(of_job[job_id], job_id in live, began, ended)
        if runaway:
            found.runaway.append(job_id)
        if amount or job_id in ledger:
            mine = ledger.get(job_id, 0.0)
            found.jobs[job_id] = {"accounting": amount, "ledger": mine}
            found.accounting += amount
            found.ledger += mine
    return found


def held(spells: Sequence[Spell], live: bool, began: float, ended: float) -> tuple[float, bool]:
    """GPU-seconds of one job within that time, and whether a row of it never ends."""
    ordered = sorted(spells, key=lambda s: (s.began, s.ended is None, s.ended or 0.0))
    amount, runaway = 0, False
    for index, spell in enumerate(ordered):
        following = ordered[index + 1].began if index + 1 < len(ordered) else None
        last = spell.ended
        if last is None and following is None and not live:
            runaway = True
            continue
        last = min(x for x in (last, following, ended) if x is not None)
        first = max(spell.began, began)
        amount += spell.gpus * max(0, _micro(last) - _micro(first))
    return amount / MICROSECONDS, runaway


def _micro(seconds: float) -> int:
    return round(seconds * MICROSECONDS)
