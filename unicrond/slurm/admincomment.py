"""What we keep in a job's AdminComment, which only admins write. Pure.

    {"unicron": {"run": 4711, "verdict": "rank 3 on n2 ended with signal 9; restarting run 4711",
                 "excluded": ["n2"]}}

Other keys belong to others and stay; what is no JSON object is somebody's own text, and is left
alone. `excluded` are nodes that we put into the job's ExcNodeList, which its user's own go before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

KEY = "unicron"
LONGEST_VERDICT = 300
_START = " AdminComment="

Comment = Mapping[str, Any]


def of_record(record: str) -> Comment | None:
    """Of `scontrol --oneliner show job`, {} where there is none; None where it is not ours to
    write. What the job's user wrote elsewhere in the record may look like one: that is no answer
    either."""
    if record.count(_START) != 1:
        return None if _START in record else {}
    text = record.partition(_START)[2]
    if text.startswith(("(null)", " ")):
        return {}
    try:
        found, _ = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return None
    ours = isinstance(found, dict) and isinstance(found.get(KEY, {}), dict)
    return found if ours else None


def excluded(comment: Comment) -> tuple[str, ...]:
    names = comment.get(KEY, {}).get("excluded", [])
    return tuple(map(str, names)) if isinstance(names, list) else ()


def with_verdict(comment: Comment, run_id: int, verdict: str) -> str:
    """One line. Nothing in it reads like a field of Slurm's records."""
    plain = re.sub(r"\s+", " ", verdict.replace("=", " ")).strip()[:LONGEST_VERDICT]
    return _text(comment, {"run": run_id, "verdict": plain})


def with_excluded(comment: Comment, nodes: Collection[str]) -> str:
    return _text(comment, {"excluded": sorted(nodes)})


def _text(comment: Comment, ours: Mapping[str, Any]) -> str:
    kept = {k: v for k, v in {**comment.get(KEY, {}), **ours}.items() if v != []}
    return json.dumps({**comment, KEY: kept} if kept else _without(comment))


def _without(comment: Comment) -> Comment:
    return {key: value for key, value in comment.items() if key != KEY}
