"""`unicronctl classify` and `unicronctl diagnose`: JSON lines in, JSON lines out, no daemon needed.

Mounted in `unicrond.ctl.main` as two commands beside the others.
May touch: files, standard input and output.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from unicrond.errors import BadInput

if TYPE_CHECKING:
    from detectors.diagnosis import Report

File = Annotated[Path | None, typer.Argument(help="JSON lines; standard input if left out or -")]
Row = dict[str, object]
MOST_SECONDS = 1e15


def classify(file: File = None) -> None:
    """Say of each message what failed, how badly and by whose fault.

    One JSON object a line, in: id, source_kind, text. Out, in the same order: id, kind, severity,
    blame, recurs, rule, evidence.
    """
    from detectors.classification import classify as verdict_of  # slow to import

    for number, row in _rows(file):
        verdict = verdict_of(_string(row, "source_kind", number), _string(row, "text", number))
        _write(
            {
                "id": _identity(row, number),
                "kind": verdict.kind,
                "severity": verdict.severity,
                "blame": verdict.blame,
                "recurs": verdict.recurs,
                "rule": verdict.rule,
                "evidence": verdict.evidence,
            }
        )


def diagnose(file: File = None) -> None:
    """Find the root among the reports of many ranks.

    One JSON object a line, in: id, ranks (a list of rank, node, text and, where known, t in
    seconds). Out: id, root_rank, root_node, kind, severity, confidence, reason.
    """
    from detectors.diagnosis import diagnose as root_of

    for number, row in _rows(file):
        ranks = row.get("ranks")
        if not isinstance(ranks, list):
            raise BadInput(f"line {number}: ranks must be a list of reports")
        root = root_of([_report(item, number, at) for at, item in enumerate(ranks)])
        _write(
            {
                "id": _identity(row, number),
                "root_rank": root.root_rank,
                "root_node": root.root_node,
                "kind": root.kind,
                "severity": root.severity,
                "confidence": root.confidence,
                "reason": root.reason,
            }
        )


def _report(item: object, number: int, at: int) -> Report:
    from detectors.diagnosis import Report

    where = f"ranks[{at}]."
    if not isinstance(item, dict):
        raise BadInput(f"line {number}: ranks[{at}] must be an object with rank, node and text")
    rank, time = item.get("rank"), item.get("t")
    if isinstance(rank, bool) or not isinstance(rank, int | str | None):
        raise BadInput(f"line {number}: {where}rank must be a number, a name or null")
    if isinstance(time, bool) or not isinstance(time, int | float | None):
        raise BadInput(f"line {number}: {where}t must be seconds or null")
    if time is not None and not -MOST_SECONDS < time < MOST_SECONDS:
        raise BadInput(f"line {number}: {where}t must be a finite number of seconds")
    return Report(
        rank=rank if isinstance(rank, int) else None,
        node="" if item.get("node") is None else _string(item, "node", number, where),
        text=_string(item, "text", number, where),
        at=None if time is None else float(time),
        label=rank if isinstance(rank, str) else "",
    )


def _rows(file: Path | None) -> Iterator[tuple[int, Row]]:
    with _opened(file) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, _row(line, number)


@contextmanager
def _opened(file: Path | None) -> Iterator[TextIO]:
    """Bytes that are no UTF-8 are replaced: a damaged log is still a log."""
    if file is None or str(file) == "-":
        if isinstance(sys.stdin, TextIOWrapper):
            sys.stdin.reconfigure(encoding="utf-8", errors="replace")
        yield sys.stdin
        return
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            yield lines
    except OSError as error:
        raise BadInput(f"FILE {file}: {error.strerror or error}") from error


def _row(line: str, number: int) -> Row:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"line {number}: not a JSON object ({error})") from error
    if not isinstance(row, dict):
        raise BadInput(f"line {number}: must be a JSON object, one a line")
    return row


def _identity(row: Row, number: int) -> object:
    if "id" not in row:
        raise BadInput(f"line {number}: id is missing")
    return row["id"]


def _string(row: Row, field: str, number: int, where: str = "") -> str:
    value = row.get(field)
    if not isinstance(value, str):
        raise BadInput(f"line {number}: {where}{field} must be a string")
    return value


def _write(row: Row) -> None:
    print(json.dumps(row))
