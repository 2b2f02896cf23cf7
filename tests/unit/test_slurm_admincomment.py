"""What we keep in a job's AdminComment."""

from __future__ import annotations

import json

import pytest

from unicrond.slurm.admincomment import (
    LONGEST_VERDICT,
    excluded,
    of_record,
    with_excluded,
    with_verdict,
)
from unicrond.slurm.parse import parse_jobs


@pytest.mark.parametrize(
    ("record", "found"),
    [
        ("JobId=1 JobName=a", {}),
        ("JobId=1 AdminComment=(null) WorkDir=/", {}),
        ("JobId=1 AdminComment= WorkDir=/", {}),
        ('JobId=1 AdminComment={"site": {"a b": 1}} WorkDir=/', {"site": {"a b": 1}}),
        ("JobId=1 AdminComment=watch this one WorkDir=/", None),
        ("JobId=1 AdminComment=[1] WorkDir=/", None),
        ('JobId=1 AdminComment={"unicron": 5} WorkDir=/', None),
        ('JobId=1 JobName=x AdminComment={"unicron": {}} y AdminComment=(null)', None),
    ],
)
def test_it_is_ours_to_write_where_it_is_empty_or_an_object(record: str, found: object) -> None:
    assert of_record(record) == found


def test_keys_of_others_stay() -> None:
    text = with_verdict({"site": 1, "unicron": {"excluded": ["n2"]}}, 4711, "restart")
    assert json.loads(text) == {
        "site": 1,
        "unicron": {"excluded": ["n2"], "run": 4711, "verdict": "restart"},
    }
    assert json.loads(with_excluded({"site": 1, "unicron": {"excluded": ["n2"]}}, [])) == {
        "site": 1
    }
    assert excluded({"unicron": {"excluded": ["n2"]}}) == ("n2",)
    assert excluded({"unicron": {"excluded": "n2"}}) == ()


def test_no_verdict_makes_slurms_record_unreadable() -> None:
    """A program's last words may be part of it."""
    said = with_verdict({}, 1, "it said JobState=COMPLETED\nJobId=9 UserId=root(0)" + "x" * 900)
    record = (
        "JobId=1 JobName=a UserId=alice(1001) JobState=RUNNING NodeList=n1 TRES=gres/gpu=1 "
        f"AdminComment={said} WorkDir=/\n"
    )
    seen = parse_jobs(record, {})
    assert (seen.troubles, list(seen.known)) == ((), [1])
    assert seen.known[1].user == "alice"
    verdict = json.loads(said)["unicron"]["verdict"]
    assert "\n" not in verdict
    assert len(verdict) == LONGEST_VERDICT
