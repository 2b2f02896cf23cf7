"""Slurm's accounting: text of `sacct --parsable2` to spells, and the command itself.

    TZ=UTC sacct --allusers --allocations --duplicates --truncate --parsable2 \\
        --starttime=now-30days --endtime=now --format=FORMAT

Times without a zone are UTC. A job has a line for each time that it was started (--duplicates) and
for each size that it had (RESIZING). What is malformed is refused with its line and field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone

from unicrond.errors import BadInput
from unicrond.model.accounting import Spell
from unicrond.slurm.command import SlurmCommand
from unicrond.slurm.hostlist import BadHostlist, expand

FIELDS = ("JobIDRaw", "User", "State", "Submit", "Start", "End", "AllocTRES", "NodeList", "JobName")
FORMAT = ",".join(FIELDS)  # the name last: it may hold what parts the fields
MOST_LINES = 1_000_000
ANSWER_SECONDS = 300.0
NO_TIME = ("", "None", "Unknown")
_GPUS = re.compile(r"(?:^|,)gres/gpu=(\d{1,9})(?:,|$)")
_JOB = re.compile(r"(\d{1,18})(?:[+.].*)?")

Fields = Mapping[str, str]


def ask(since: str) -> str:
    """What sacct says now, of all users; raises Refused, SlurmUnavailable."""
    words = ("--allusers", "--allocations", "--duplicates", "--truncate", "--parsable2")
    command = SlurmCommand(timeout_seconds=ANSWER_SECONDS)
    return command.run(
        "sacct", *words, f"--starttime={since}", "--endtime=now", f"--format={FORMAT}"
    )


def parse(text: str, source: str) -> list[Spell]:
    """Raises BadInput that names the line and the field. Jobs that never ran are left out."""
    lines = text.splitlines()
    if len(lines) > MOST_LINES:
        raise BadInput(f"{source}: {len(lines)} lines, at most {MOST_LINES} can be read")
    header = lines[0].split("|") if lines else []
    if missing := [name for name in FIELDS if name not in header]:
        raise BadInput(
            f"{source}: line 1: no field {missing[0]}; ask sacct for --parsable2 --format={FORMAT}"
        )
    return list(_spells(lines, header, source))


def _spells(lines: list[str], header: list[str], source: str) -> Iterator[Spell]:
    named_last = header[-1] == "JobName"
    for number, line in enumerate(lines[1:], start=2):
        if not line:
            continue
        place = f"{source}: line {number}"
        values = line.split("|", len(header) - 1 if named_last else -1)
        if len(values) != len(header):
            raise BadInput(f"{place}: {len(values)} fields, the first line names {len(header)}")
        spell = _spell(dict(zip(header, values, strict=True)), place)
        if spell is not None:
            yield spell


def _spell(fields: Fields, place: str) -> Spell | None:
    began = _time(fields, "Start", place)
    if began is None:
        return None
    ended, submitted = _time(fields, "End", place), _time(fields, "Submit", place)
    if ended is not None and ended < began:
        raise BadInput(f"{place}: End: {fields['End']} is before Start, {fields['Start']}")
    job = _JOB.fullmatch(fields["JobIDRaw"])
    if job is None:
        raise BadInput(f"{place}: JobIDRaw: {fields['JobIDRaw'][:40]!r} is no number of a job")
    return Spell(
        job_id=int(job[1]),
        user=fields["User"],
        name=fields["JobName"],
        state=(fields["State"].split() or [""])[0],
        submitted=began if submitted is None else submitted,
        began=began,
        ended=ended,
        gpus=_gpus(fields, place),
        nodes=_nodes(fields, place),
    )


def _time(fields: Fields, name: str, place: str) -> float | None:
    text = fields[name]
    if text in NO_TIME:
        return None
    try:
        if text.isascii() and text.isdigit():
            return float(text)
        told = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(
            f"{place}: {name}: {text[:40]!r} is no time; it reads 2026-11-30T12:00:00"
        ) from None
    return (told if told.tzinfo else told.replace(tzinfo=timezone.utc)).timestamp()


def _gpus(fields: Fields, place: str) -> int:
    text = fields["AllocTRES"]
    if text and "=" not in text:
        raise BadInput(
            f"{place}: AllocTRES: {text[:40]!r} is no list of resources; it reads gres/gpu=8,node=1"
        )
    found = _GPUS.search(text)
    return int(found[1]) if found else 0


def _nodes(fields: Fields, place: str) -> tuple[str, ...]:
    text = fields["NodeList"]
    if text in ("", "None assigned", "None"):
        return ()
    try:
        return expand(text)
    except BadHostlist as error:
        raise BadInput(f"{place}: NodeList: {error}") from None
