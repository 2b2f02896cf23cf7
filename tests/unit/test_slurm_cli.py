"""CommandLineSlurm over a stand-in for scontrol that prints recorded text and notes what it got."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from unicrond.errors import Refused, SlurmUnavailable
from unicrond.model.cluster import JobState, NodeState
from unicrond.slurm import sizing
from unicrond.slurm.cli import CommandLineSlurm
from unicrond.slurm.command import SlurmCommand, plain_environment
from unicrond.slurm.parse import parse_nodes

DATA = Path(__file__).parent.parent / "data/slurm/22.05"
REQUEUED = (DATA / "job-requeued.txt").read_text()
GENUINE = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)  # of jobs-mixed.txt; 77 and 78 are forged


class HandClock:
    def now(self) -> float:
        return 5.0


class StandIn:
    """A program before scontrol: answers by what follows, in the order of `answers`."""

    def __init__(self, folder: Path) -> None:
        self.script = folder / "stand-in"
        self.told = folder / "told"
        self.told.touch()
        self._cases: list[str] = []

    def answer(self, words: str, text: str = "", error: str = "", status: int = 0) -> None:
        number = len(self._cases)
        output, trouble = (self.script.with_suffix(f".{number}{end}") for end in ("o", "e"))
        output.write_text(text)
        trouble.write_text(error)
        self._cases.append(f'*"{words}"*) cat {output}; cat {trouble} >&2; exit {status};;')
        cases = "\n".join(self._cases)
        self.script.write_text(
            f'#!/bin/sh\necho "$@" >>{self.told}\ncase "$*" in\n{cases}\n'
            f'*"show topology"* | *"show reservation"*) exit 0;;\n*) exit 99;;\nesac\n'
        )
        self.script.chmod(self.script.stat().st_mode | stat.S_IXUSR)

    def slurm(self) -> CommandLineSlurm:
        return CommandLineSlurm(HandClock(), [str(self.script)], timeout_seconds=5)

    @property
    def updates(self) -> list[str]:
        lines = self.told.read_text().splitlines()
        return [line.split("scontrol ")[1] for line in lines if " update " in line]


@pytest.fixture
def stand_in(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path)


@pytest.fixture
def cluster(stand_in: StandIn) -> StandIn:
    stand_in.answer("show config", (DATA / "config.txt").read_text())
    stand_in.answer("show node n", (DATA / "nodes-drained.txt").read_text())
    stand_in.answer("show node", (DATA / "nodes-drained.txt").read_text())
    stand_in.answer("show job 1", (DATA / "job-requeued.txt").read_text())
    stand_in.answer("show job", (DATA / "jobs-mixed.txt").read_text())
    stand_in.answer("squeue", "\n".join(map(str, GENUINE)))
    stand_in.answer("update")
    return stand_in


def test_a_snapshot_is_two_commands_and_four_more_the_first_time(stand_in: StandIn) -> None:
    jobs = (DATA / "jobs-lost.txt").read_text()
    stand_in.answer("show config", (DATA / "config.txt").read_text())
    stand_in.answer("show node", (DATA / "nodes-lost.txt").read_text())
    stand_in.answer("show job", jobs)
    stand_in.answer("squeue", "\n".join(re.findall(r"^JobId=(\d+)", jobs, re.MULTILINE)))
    slurm = stand_in.slurm()
    for _ in range(3):
        slurm.snapshot()
    told = stand_in.told.read_text().splitlines()
    assert len(told) == 3 * 2 + 4
    assert "LC_ALL=C TZ=UTC SLURM_TIME_FORMAT=standard scontrol" in told[0]


def test_nodes_come_with_their_switches(stand_in: StandIn) -> None:
    stand_in.answer("show topology", (DATA / "topology.txt").read_text())
    stand_in.answer("show config")
    stand_in.answer("show node", (DATA / "nodes-busy.txt").read_text())
    stand_in.answer("show job", "No jobs in the system\n")
    seen = stand_in.slurm().snapshot()
    assert seen.nodes is not None
    assert (seen.nodes["n1"].switch, seen.nodes["n5"].switch) == ("s1", "")


def test_records_that_stay_unknown_are_kept_and_named(cluster: StandIn) -> None:
    seen = cluster.slurm().snapshot()
    assert seen.at == 5.0
    assert seen.allocations is not None
    assert seen.allocations[5].state is JobState.UNKNOWN
    assert "job 5: JobState stands twice" in seen.error
    assert seen.nodes is not None
    assert seen.nodes["n1"].state is NodeState.UP


def test_a_record_that_a_line_break_forged_is_no_job(cluster: StandIn) -> None:
    seen = cluster.slurm().snapshot()
    assert seen.allocations is not None
    assert not {77, 78} & set(seen.allocations)
    assert seen.allocations[7].user == "alice"
    assert "job 78: no such job; a line break in a name or comment of another" in seen.error


def test_a_job_that_another_forges_is_asked_for_alone(stand_in: StandIn) -> None:
    genuine = (DATA / "job-shrunk.txt").read_text()
    job_id = int(re.findall(r"^JobId=(\d+)", genuine)[0])
    stand_in.answer("show config")
    stand_in.answer("show node", (DATA / "nodes-busy.txt").read_text())
    stand_in.answer(f"show job {job_id}", genuine)
    forged = genuine.replace("alice(1001)", "mallory(1003)")
    hostile = genuine.replace(f"JobId={job_id} ", f"JobId=999 Comment=x\n{forged.strip()} ")
    stand_in.answer("show job", hostile + genuine)
    stand_in.answer("squeue", f"{job_id}\n999\n")
    seen = stand_in.slurm().snapshot()
    assert seen.allocations is not None
    assert seen.allocations[job_id].user == "alice"
    assert f"job {job_id}: shown twice" in seen.error
    assert seen.allocations[999].state is JobState.UNKNOWN


@pytest.mark.parametrize(("said", "status"), [("", 0), ("Unable to contact slurm controller", 1)])
def test_jobs_that_nothing_confirms_are_unknown(stand_in: StandIn, said: str, status: int) -> None:
    stand_in.answer("show config")
    stand_in.answer("show node", (DATA / "nodes-busy.txt").read_text())
    stand_in.answer("show job", (DATA / "job-shrunk.txt").read_text())
    stand_in.answer("squeue", error=said, status=status)
    seen = stand_in.slurm().snapshot()
    assert seen.nodes is not None
    assert seen.allocations is None
    assert seen.error.startswith("squeue")


def test_an_empty_answer_is_unknown_and_not_no_nodes(stand_in: StandIn) -> None:
    stand_in.answer("show config")
    stand_in.answer("show node", "")
    seen = stand_in.slurm().snapshot()
    assert (seen.nodes, seen.allocations) == (None, None)
    assert seen.error == "scontrol show node: an empty answer"


@pytest.mark.parametrize("answer", ["", "slurm_load_jobs: nonsense\n"])
def test_jobs_that_cannot_be_read_leave_the_nodes_known(stand_in: StandIn, answer: str) -> None:
    stand_in.answer("show config")
    stand_in.answer("show node", (DATA / "nodes-busy.txt").read_text())
    stand_in.answer("show job", answer)
    seen = stand_in.slurm().snapshot()
    assert seen.nodes is not None
    assert seen.allocations is None
    assert seen.error == "scontrol show job: an empty answer"


def test_no_jobs_in_the_system_is_a_real_none(stand_in: StandIn) -> None:
    stand_in.answer("show config")
    stand_in.answer("show node", (DATA / "nodes-busy.txt").read_text())
    stand_in.answer("show job", "No jobs in the system\n")
    seen = stand_in.slurm().snapshot()
    assert (seen.allocations, seen.error) == ({}, "")


def test_expediting_keeps_the_nodes_that_the_user_excluded(stand_in: StandIn) -> None:
    text = re.sub(r"SubmitTime=\S+", "SubmitTime=1970-01-01T00:00:04", REQUEUED)
    stand_in.answer("show job", text.replace("ExcNodeList=(null)", "ExcNodeList=n[7-8]"))
    stand_in.answer("update")
    stand_in.slurm().expedite(1, ["n6", "n8"])
    note = 'AdminComment={"unicron": {"excluded": ["n6"]}}'
    assert stand_in.updates == [f"update JobId=1 StartTime=now+2 ExcNodeList=n[6-8] {note}"]


OURS = 'AdminComment={"site": 1, "unicron": {"run": 1, "excluded": ["n6"]}} WorkDir='


@pytest.mark.parametrize(
    ("noted", "exclude", "words"),
    [
        (OURS, [], 'ExcNodeList=n8 AdminComment={"site": 1, "unicron": {"run": 1}}'),
        (OURS, ["n6"], ""),
        ("AdminComment=watch this one WorkDir=", [], ""),
        ("AdminComment=watch this one WorkDir=", ["n7"], "ExcNodeList=n[6-8]"),
    ],
)
def test_what_we_excluded_once_is_excluded_no_longer(
    stand_in: StandIn, noted: str, exclude: list[str], words: str
) -> None:
    text = REQUEUED.replace("ExcNodeList=(null)", "ExcNodeList=n[6,8]").replace("WorkDir=", noted)
    stand_in.answer("show job", text)
    stand_in.answer("update")
    stand_in.slurm().expedite(1, exclude)
    assert stand_in.updates == [f"update JobId=1 StartTime=now+2 {words}".rstrip()]


def test_who_may_not_write_admin_comments_starts_the_job_all_the_same(stand_in: StandIn) -> None:
    stand_in.answer("show job", REQUEUED)
    stand_in.answer("AdminComment", error="Access/permission denied", status=1)
    stand_in.answer("update")
    stand_in.slurm().expedite(1, ["n6"])
    assert stand_in.updates[-1] == "update JobId=1 StartTime=now+2 ExcNodeList=n6"


def test_nodes_are_kept_by_one_reservation_that_ends_by_itself(stand_in: StandIn) -> None:
    stand_in.answer("show reservation", "No reservations in the system\n")
    stand_in.answer("create")
    stand_in.slurm().reserve(17, "alice", ["n2", "n1"])
    told = stand_in.told.read_text()
    words = "ReservationName=unicron-17 nodes=n[1-2] users=alice starttime=now duration=2"
    assert f"create reservation {words} flags=ignore_jobs,flex,magnetic" in told


def test_nodes_that_are_kept_already_are_not_kept_anew(stand_in: StandIn) -> None:
    stand_in.answer("show reservation", "ReservationName=unicron-17 StartTime=x Nodes=n[1-2]\n")
    stand_in.slurm().reserve(17, "alice", ["n2", "n1"])
    assert "create" not in stand_in.told.read_text()


def test_a_verdict_is_added_to_what_stands_in_the_admin_comment(stand_in: StandIn) -> None:
    stand_in.answer("show job", REQUEUED.replace("WorkDir=", 'AdminComment={"site": 1} WorkDir='))
    stand_in.answer("update")
    stand_in.slurm().tell(1, "restart: rank 3 ended")
    told = '{"site": 1, "unicron": {"run": 1, "verdict": "restart: rank 3 ended"}}'
    assert stand_in.updates == [f"update JobId=1 AdminComment={told}"]


def test_anothers_admin_comment_is_left_alone(stand_in: StandIn) -> None:
    stand_in.answer("show job", REQUEUED.replace("WorkDir=", "AdminComment=mine WorkDir="))
    with pytest.raises(Refused, match="somebody else's words"):
        stand_in.slurm().tell(1, "restart")


@pytest.mark.parametrize(
    ("version", "size"),
    [("22.05.8", "NumTasks=1 NumNodes=1-1 NumCPUs=1"), ("24.11.5", "NumNodes=1")],
)
def test_a_size_is_written_as_each_version_needs_it(
    stand_in: StandIn, version: str, size: str
) -> None:
    text = re.sub(r"SubmitTime=\S+", "SubmitTime=1970-01-01T00:00:02", REQUEUED)
    stand_in.answer("show job", text)
    stand_in.answer("show config", f"SLURM_VERSION           = {version}")
    stand_in.answer("update")
    stand_in.slurm().expedite(1, [], nodes=1)
    assert stand_in.updates == [f"update JobId=1 StartTime=now {size}"]


def test_a_job_on_hold_is_not_expedited(stand_in: StandIn) -> None:
    stand_in.answer("show job", REQUEUED.replace("Reason=BeginTime", "Reason=JobHeldUser"))
    with pytest.raises(Refused, match="on hold"):
        stand_in.slurm().expedite(1, [])


def test_a_size_that_a_name_forges_is_not_believed() -> None:
    forged = REQUEUED.replace("JobName=", "JobName=x NumCPUs=9 NumTasks=9 ")
    with pytest.raises(Refused, match="do not stand once"):
        sizing.words(forged, 2, (22, 5))


def test_a_node_is_resumed_by_the_word_that_its_state_needs(stand_in: StandIn) -> None:
    drained = (DATA / "nodes-drained.txt").read_text()
    reason = parse_nodes(drained).known["n5"].reason
    stand_in.answer("show node n5", drained)
    stand_in.answer("update")
    stand_in.slurm().resume("n5", reason)
    assert stand_in.updates == ["update NodeName=n5 State=UNDRAIN"]
    with pytest.raises(Refused, match="another reason by now"):
        stand_in.slurm().resume("n5", "unicron: lost connection incident=9")


def test_a_second_look_comes_before_each_act(cluster: StandIn) -> None:
    slurm = cluster.slurm()
    slurm.drain("n5", "unicron: node_lost incident=9")  # ours already
    slurm.requeue(1, restarts=0)  # requeued since
    with pytest.raises(Refused):
        slurm.drain("n6", "unicron: node_lost incident=9")
    assert cluster.updates == []


def test_a_record_that_cannot_be_read_is_not_acted_on(stand_in: StandIn) -> None:
    stand_in.answer("show job", "JobId=1 JobName=x\n")
    with pytest.raises(SlurmUnavailable, match="UserId is missing"):
        stand_in.slurm().requeue(1, restarts=0)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
         SlurmUnavailable),
        ("Unexpected message received for job 17", SlurmUnavailable),
        ("Job can not be altered now, try again later for job 3", SlurmUnavailable),
        ("Invalid node name specified for job 1", Refused),
        ("slurm_update error: Invalid user id", Refused),
        ("", Refused),
    ],
)  # fmt: skip
def test_slurms_no_and_its_silence_are_told_apart(
    stand_in: StandIn, said: str, kind: type[Exception]
) -> None:
    stand_in.answer("show job", error=said, status=1)
    with pytest.raises(
        kind, match=(said or "exit status 1").replace("(", r"\(").replace(")", r"\)")
    ):
        stand_in.slurm().requeue(1, restarts=0)


def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    with pytest.raises(SlurmUnavailable, match=r"no answer within 0\.2 s"):
        SlurmCommand(timeout_seconds=0.2).run("sleep", "60")


def test_a_command_that_does_not_exist_is_unavailable() -> None:
    with pytest.raises(SlurmUnavailable, match="cannot be started"):
        SlurmCommand().run("no-such-scontrol")


def test_what_a_job_left_in_the_environment_does_not_reach_slurm() -> None:
    kept = plain_environment({"SLURM_CONF": "/c", "SLURM_CLUSTERS": "x", "LC_TIME": "de", "A": "1"})
    assert kept == {
        "SLURM_CONF": "/c", "A": "1", "LC_ALL": "C", "TZ": "UTC", "SLURM_TIME_FORMAT": "standard",
    }  # fmt: skip
