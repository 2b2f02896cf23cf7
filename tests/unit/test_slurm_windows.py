"""Maintenance windows, as Slurm 22.05 tells of reservations."""

from __future__ import annotations

from unicrond.errors import SlurmUnavailable
from unicrond.model.cluster import Node, NodeState
from unicrond.slurm.windows import Maintenance, parse_windows

TEXT = """\
ReservationName=fix StartTime=2026-11-30T22:38:35 EndTime=2026-11-30T23:38:35 Duration=01:00:00 \
Nodes=n[3-4] NodeCnt=2 CoreCnt=64 Features=(null) PartitionName=(null) \
Flags=MAINT,IGNORE_JOBS,SPEC_NODES TRES=cpu=64 Users=root Groups=(null) State=INACTIVE
ReservationName=class StartTime=2026-11-30T21:38:35 EndTime=2026-11-30T21:40:35 Duration=00:02:00 \
Nodes=n5 NodeCnt=1 CoreCnt=32 Features=(null) PartitionName=(null) \
Flags=FLEX,IGNORE_JOBS,SPEC_NODES TRES=cpu=32 Users=alice Groups=(null) State=ACTIVE
"""
AT = 1796078315.0  # 2026-11-30T22:38:35Z
NODES = {name: Node(name, NodeState.UP, "IDLE") for name in ("n3", "n5")}


def test_windows_are_of_maintenance_alone() -> None:
    assert parse_windows(TEXT) == ({"n3": AT, "n4": AT}, "")


def test_no_reservations_are_none() -> None:
    assert parse_windows("No reservations in the system\n") == ({}, "")


def test_what_makes_no_sense_is_told() -> None:
    assert "not a hostlist" in parse_windows(TEXT.replace("n[3-4]", "n[3"))[1]


def test_nodes_are_marked_and_asked_for_once_a_minute() -> None:
    asked: list[int] = []
    maintenance = Maintenance(lambda: asked.append(1) or TEXT)  # type: ignore[func-returns-value]
    for at in (1000.0, 1002.0, 1059.0):
        nodes, trouble = maintenance.announced(NODES, at)
        assert (nodes["n3"].away_at, nodes["n5"].away_at, trouble) == (AT, 0.0, "")
    assert len(asked) == 1
    maintenance.announced(NODES, 1060.0)
    assert len(asked) == 2


def test_what_was_read_last_stays_when_slurm_does_not_answer() -> None:
    answers = [TEXT]

    def show() -> str:
        if not answers:
            raise SlurmUnavailable("no answer")
        return answers.pop()

    maintenance = Maintenance(show)
    maintenance.announced(NODES, 0.0)
    nodes, trouble = maintenance.announced(NODES, 100.0)
    assert nodes["n3"].away_at == AT
    assert trouble == "maintenance windows are not known: no answer"
