"""Slurm's accounting as text: what is read, and what is refused with its line and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from unicrond.errors import BadInput, SlurmUnavailable
from unicrond.slurm.accounting import FIELDS, FORMAT, ask, parse

HEADER = "|".join(FIELDS)
GOOD = {
    "JobIDRaw": "4711", "User": "ada", "State": "CANCELLED by 1000",
    "Submit": "2026-10-01T08:00:00", "Start": "2026-10-01T08:00:10", "End": "2026-10-01T09:00:00",
    "AllocTRES": "cpu=64,gres/gpu=16,node=2", "NodeList": "n[01-02]", "JobName": "gpt",
}  # fmt: skip


def line(**more: str) -> str:
    return "|".join({**GOOD, **more}[name] for name in FIELDS)


def test_a_line_is_a_spell() -> None:
    (spell,) = parse(f"{HEADER}\n{line()}\n", "x")
    assert (spell.job_id, spell.state, spell.gpus) == (4711, "CANCELLED", 16)
    assert spell.nodes == ("n01", "n02")
    assert (spell.submitted, spell.began, spell.ended) == (1790841600, 1790841610, 1790845200)


def test_times_may_be_unix_seconds_or_have_a_zone() -> None:
    start = {"Start": "1790841610", "End": "2026-10-01T11:00:00+02:00"}
    (spell,) = parse(f"{HEADER}\n{line(**start)}", "x")
    assert (spell.began, spell.ended) == (1790841610, 1790845200)


def test_a_job_that_still_runs_has_no_end_and_one_that_never_ran_is_left_out() -> None:
    text = "\n".join((HEADER, line(End="Unknown"), line(Start="Unknown", End="Unknown")))
    assert [spell.ended for spell in parse(text, "x")] == [None]


def test_a_name_may_hold_what_parts_the_fields_where_it_stands_last() -> None:
    (spell,) = parse(f"{HEADER}\n{line(JobName='a|b')}", "x")
    assert spell.name == "a|b"


def test_fields_may_come_in_any_order_and_with_others() -> None:
    text = f"JobName|Extra|{HEADER.removesuffix('|JobName')}\ngpt|?|{line().removesuffix('|gpt')}"
    assert parse(text, "x")[0].name == "gpt"


def test_gpus_of_a_type_are_not_counted_twice() -> None:
    (spell,) = parse(f"{HEADER}\n{line(AllocTRES='gres/gpu:h100=8,gres/gpu=8')}", "x")
    assert spell.gpus == 8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "x: line 1: no field JobIDRaw; ask sacct for --parsable2 --format=JobIDRaw,User"),
        ("JobIDRaw|User", "x: line 1: no field State"),
        (f"{HEADER}\n4711|ada", "x: line 2: 2 fields, the first line names 9"),
        (f"{HEADER}\n\n{line(JobIDRaw='job')}", "x: line 3: JobIDRaw: 'job' is no number of a job"),
        (f"{HEADER}\n{line(Start='soon')}", "x: line 2: Start: 'soon' is no time; it reads 2026"),
        (f"{HEADER}\n{line(Submit='2026-13-01')}", "x: line 2: Submit: '2026-13-01' is no time"),
        (f"{HEADER}\n{line(End='2026-09-30')}", "x: line 2: End: 2026-09-30 is before Start"),
        (f"{HEADER}\n{line(NodeList='n[1')}", "x: line 2: NodeList: not a hostlist"),
        (f"{HEADER}\n{line(AllocTRES='many')}", "x: line 2: AllocTRES: 'many' is no list of"),
    ],
)
def test_what_is_malformed_is_named_by_line_and_field(text: str, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse(text, "x")
    assert str(refused.value).startswith(said)


def test_sacct_is_asked_for_all_users_every_start_and_utc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sacct = tmp_path / "sacct"
    sacct.write_text('#!/bin/sh\necho "$TZ $@"\n')
    sacct.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert ask("now-7days").split() == [
        "UTC", "--allusers", "--allocations", "--duplicates", "--truncate", "--parsable2",
        "--starttime=now-7days", "--endtime=now", f"--format={FORMAT}",
    ]  # fmt: skip


def test_without_sacct_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmUnavailable, match="sacct cannot be started"):
        ask("now-7days")
