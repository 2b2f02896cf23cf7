"""What Slurm printed, read. What is recorded and what constructed: tests/data/slurm/README.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unicrond.model.cluster import Allocation, JobState, Node, NodeState
from unicrond.slurm.parse import (
    BadRecord,
    Jobs,
    excluded_nodes,
    gpu_type,
    gpus,
    own_record,
    parse_jobs,
    parse_nodes,
    slurmd_port,
    subject,
)

DATA = Path(__file__).parent.parent / "data/slurm"


def nodes(name: str) -> dict[str, Node]:
    return dict(parse_nodes((DATA / name).read_text()).known)


def jobs(name: str) -> Jobs:
    return parse_jobs((DATA / name).read_text(), nodes("22.05/nodes-busy.txt"))


def job(name: str, job_id: int) -> Allocation:
    return jobs(name).known[job_id]


def test_nodes_at_work_are_up() -> None:
    seen = nodes("22.05/nodes-busy.txt")
    assert list(seen) == [f"n{number}" for number in range(1, 7)]
    assert {node.state for node in seen.values()} == {NodeState.UP}
    assert seen["n1"] == Node("n1", NodeState.UP, "MIXED", 8, ("main",), address="10.77.0.1")


def test_a_persons_reason_is_read_whole() -> None:
    node = nodes("22.05/nodes-drained.txt")["n6"]
    assert node.state is NodeState.DRAINED
    assert node.reason == "disk /dev/sdb is slow = replace [ticket 7]"
    assert node.reason_user == "root"


def test_lost_nodes_are_down_and_keep_our_reason() -> None:
    seen = nodes("22.05/nodes-lost.txt")
    assert seen["n1"].state is NodeState.DOWN
    assert seen["n1"].raw_state == "DOWN+DRAIN+NOT_RESPONDING"
    assert seen["n1"].reason == "unicron: node_lost incident=4"
    assert (seen["n3"].reason, seen["n3"].reason_user) == ("Not responding", "slurm")
    assert seen["n2"].state is NodeState.UP


def test_newer_slurm_appends_to_our_reason() -> None:
    node = nodes("constructed/nodes-24.11.txt")["g2"]
    assert node.reason == "unicron: node_lost incident=7 : Not responding"
    assert node.reason_user == "root"


def test_port_address_and_typed_gpus_are_read() -> None:
    node = nodes("constructed/nodes-24.11.txt")["g1"]
    assert (node.address, node.port, node.gpus) == ("g1.example", 6828, 8)
    assert node.partitions == ("main", "gpu")


def test_a_node_without_a_port_of_its_own_has_the_clusters() -> None:
    config = (DATA / "22.05/config.txt").read_text()
    text = (DATA / "22.05/nodes-busy.txt").read_text()
    assert parse_nodes(text, slurmd_port(config)).known["n1"].port == 6818
    assert parse_nodes(text, slurmd_port("SlurmdPort   = 7001\n")).known["n1"].port == 7001


def test_a_node_whose_text_is_short_is_unknown_and_named() -> None:
    read = parse_nodes((DATA / "constructed/nodes-24.11.txt").read_text())
    assert read.known["g5"].state is NodeState.UNKNOWN
    assert read.troubles == ("node g5: State is missing",)


@pytest.mark.parametrize(
    ("raw", "state"),
    [
        ("IDLE", NodeState.UP),
        ("MIXED+PLANNED", NodeState.UP),
        ("IDLE+COMPLETING", NodeState.UP),
        ("IDLE+DRAIN", NodeState.DRAINED),
        ("IDLE+DRAIN+NOT_RESPONDING", NodeState.DRAINED),
        ("ALLOCATED+FAIL", NodeState.DRAINED),
        ("DOWN", NodeState.DOWN),
        ("DOWN+DRAIN", NodeState.DOWN),
        ("DOWN*", NodeState.DOWN),
        ("MIXED+NOT_RESPONDING", NodeState.UNKNOWN),
        ("IDLE*", NodeState.UNKNOWN),
        ("UNKNOWN", NodeState.UNKNOWN),
        ("UNKNOWN+DRAIN", NodeState.DRAINED),
        ("IDLE+CLOUD+POWERED_DOWN", NodeState.UNKNOWN),
        ("FUTURE", NodeState.UNKNOWN),
        ("BRANDNEW", NodeState.UNKNOWN),
    ],
)
def test_a_state_is_up_only_when_every_word_says_so(raw: str, state: NodeState) -> None:
    assert parse_nodes(f"NodeName=n1 State={raw} Partitions=main\n").known["n1"].state is state


def test_a_running_job_is_read_whole() -> None:
    assert job("22.05/jobs-mixed.txt", 1) == Allocation(
        job_id=1,
        name="train llm lr=0.1 Seed=3",
        user="alice",
        uid=1001,
        account="lab",
        partition="main",
        state=JobState.RUNNING,
        nodes=("n1", "n2"),
        batch_host="n1",
        gpus=16,
        submit_time=1796048902.0,
        start_time=1796048902.0,
        comment='{"unicron": {"weight": 2}, "note": "a = b"}',
        whole_nodes=True,
    )


@pytest.mark.parametrize(
    ("job_id", "state"),
    [
        (4, JobState.PENDING),
        (8, JobState.PENDING),
        (9, JobState.FAILED),
        (10, JobState.COMPLETED),
        (11, JobState.RUNNING),
        (12, JobState.RUNNING),
    ],
)
def test_states_of_jobs_are_read(job_id: int, state: JobState) -> None:
    assert job("22.05/jobs-mixed.txt", job_id).state is state


def test_a_job_with_some_gpus_of_its_node_does_not_have_it_whole() -> None:
    assert not job("22.05/jobs-mixed.txt", 2).whole_nodes


def test_an_exclusive_job_has_its_node_whole() -> None:
    assert job("22.05/jobs-mixed.txt", 3).whole_nodes


def test_a_pending_job_has_no_nodes_and_no_forecasts() -> None:
    waiting = job("22.05/jobs-mixed.txt", 4)
    assert (waiting.nodes, waiting.batch_host, waiting.gpus) == ((), "", 40)
    assert (waiting.start_time, waiting.end_time) == (0.0, 0.0)
    assert waiting.reason == "Resources"


def test_a_limit_is_seconds_and_the_forecast_of_an_end_is_not_an_end() -> None:
    limited = job("22.05/jobs-mixed.txt", 11)
    assert (limited.time_limit_seconds, limited.end_time) == (60, 0.0)


def test_a_requeued_job_counts_its_restarts() -> None:
    requeued = job("22.05/job-requeued.txt", 1)
    assert (requeued.state, requeued.restarts) == (JobState.PENDING, 1)
    assert requeued.reason == "BeginTime"


def test_a_shrunk_job_holds_what_it_kept() -> None:
    shrunk = job("22.05/job-shrunk.txt", 1)
    assert (shrunk.nodes, shrunk.gpus) == (("n1",), 8)


def test_a_job_goes_on_without_its_batch_host() -> None:
    survivor = job("22.05/jobs-lost.txt", 14)
    assert (survivor.state, survivor.nodes) == (JobState.RUNNING, ("n2",))
    assert survivor.batch_host == "n1"


def test_a_completing_job_is_not_pending_yet() -> None:
    assert job("22.05/jobs-lost.txt", 16).state is JobState.COMPLETING


def test_a_name_with_keys_in_it_makes_its_own_record_unknown() -> None:
    read = jobs("22.05/jobs-mixed.txt")
    assert read.known[5].state is JobState.UNKNOWN
    assert read.known[5].uid == -1
    assert "job 5: JobState stands twice" in read.troubles


def test_a_line_break_in_a_name_or_comment_forges_no_job() -> None:
    read = jobs("22.05/jobs-mixed.txt")
    assert all(read.known[job_id].uid == -1 for job_id in (6, 77, 78))
    assert read.known[7].user == "alice"
    assert len(read.troubles) == 4


def test_a_job_that_is_shown_twice_belongs_to_nobody() -> None:
    text = (DATA / "constructed/jobs-24.11.txt").read_text()
    read = parse_jobs(text + text.replace("alice(1001)", "mallory(1003)"), {})
    assert read.known[31].uid == -1
    assert "job 31: shown twice" in read.troubles


@pytest.mark.parametrize(
    ("gres", "kind"),
    [
        ("gpu:h100:8(S:0-1)", "h100"),
        ("gpu:nvidia_a100-sxm4-80gb:4,nic:2", "nvidia_a100-sxm4-80gb"),
        ("gpu:8", ""),
        ("nic:2", ""),
        ("", ""),
    ],
)
def test_the_type_of_a_nodes_gpus_is_told_where_slurm_names_it(gres: str, kind: str) -> None:
    assert gpu_type(gres) == kind


def test_newer_slurm_tells_requested_and_allocated_gpus() -> None:
    seen = job("constructed/jobs-24.11.txt", 31)
    assert (seen.gpus, seen.restarts, seen.batch_host) == (16, 2, "g1")
    assert seen.time_limit_seconds == 2 * 86400
    assert seen.comment == 'a = b, {"unicron": {"weight": 2}}'


def test_where_gpus_are_not_tracked_the_request_tells() -> None:
    assert job("constructed/jobs-24.11.txt", 32).gpus == 12


def test_a_state_that_is_new_to_us_is_unknown_but_the_rest_is_read() -> None:
    seen = job("constructed/jobs-24.11.txt", 33)
    assert (seen.state, seen.user, seen.nodes) == (JobState.UNKNOWN, "bob", ("g3",))


def test_whole_nodes_counts_the_gpus_of_all_of_them() -> None:
    text = (DATA / "constructed/jobs-24.11.txt").read_text()
    known = nodes("constructed/nodes-24.11.txt")
    assert parse_jobs(text, known).known[31].whole_nodes
    assert not parse_jobs(text, {"g1": known["g1"]}).known[31].whole_nodes


@pytest.mark.parametrize(
    ("wrong", "trouble"),
    [
        ("UserId=alice", "names no uid"),
        ("SubmitTime=soon", "is not a time"),
        ("Restarts=many", "is not a number"),
        ("NodeList=n[2-1]", "runs backwards"),
    ],
)
def test_a_value_that_cannot_be_read_makes_one_job_unknown_and_says_which(
    wrong: str, trouble: str
) -> None:
    key = wrong.split("=")[0]
    line = (DATA / "22.05/job-shrunk.txt").read_text()
    value = line.split(f" {key}=")[1].split(" ")[0]
    read = parse_jobs(line.replace(f" {key}={value} ", f" {wrong} "), {})
    assert read.known[1].state is JobState.UNKNOWN
    assert read.troubles[0].startswith("job 1: ")
    assert trouble in read.troubles[0]


@pytest.mark.parametrize("state", ["EXPEDITING", "REQUEUE_HOLD", "RESV_DEL_HOLD"])
def test_a_job_that_slurm_requeued_in_its_own_way_waits(state: str) -> None:
    line = (DATA / "22.05/job-requeued.txt").read_text()
    newer = line.replace("JobState=PENDING", f"JobState={state}")
    newer = newer.replace(" Requeue=1 ", " Requeue=1 ExpeditedRequeue=Yes ")
    read = parse_jobs(newer, {})
    assert read.troubles == ()
    assert (read.known[1].state, read.known[1].restarts) == (JobState.PENDING, 1)


def test_excluded_nodes_are_read_for_one_job() -> None:
    assert excluded_nodes("JobId=4 ExcNodeList=n[1,3] NodeList=\n") == ("n1", "n3")
    assert excluded_nodes("JobId=4 ExcNodeList=(null) NodeList=\n") == ()
    with pytest.raises(BadRecord):
        excluded_nodes("JobId=4 JobName=a ExcNodeList=n1 ExcNodeList=n2")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("gpu:8", 8),
        ("gpu:a100:8(S:0-1)", 8),
        ("gpu:a100:4(S:0),gpu:t4:2", 6),
        ("gpu", 1),
        ("gpu:a100", 1),
        ("gpu:1080:4", 4),
        ("nvme:2", 0),
        ("cpu=2,mem=4G,gres/gpu=8", 8),
        ("cpu=2,gres/gpu=8,gres/gpu:a100=8", 8),
        ("gres/gpu:a100=8,gres/gpu:h100=2", 10),
        ("gres:gpu:8", 8),
        ("gres/gpumem=80G", 0),
        ("", 0),
    ],
)
def test_gpus_are_counted_in_every_way_slurm_writes_them(text: str, count: int) -> None:
    assert gpus(text) == count


WORDS = ["JobId=1", " UserId=a(1)", " JobState=RUNNING", " NodeList=n[1-2]", " TRES=", "gres/gpu=8"]
WORDS += ["\n", " ", "NodeName=n1", " State=IDLE", " Reason=x [a@b]", "(null)", "[", " Restarts=9x"]


@given(st.lists(st.sampled_from(WORDS), max_size=15).map("".join))
def test_no_text_raises_and_no_job_gets_lost(text: str) -> None:
    parse_nodes(text)
    told = any(line.split(" ")[0] == "JobId=1" for line in text.split("\n"))
    assert (1 in parse_jobs(text, {}).known) == told


@given(st.binary(max_size=200))
def test_a_truncated_or_mangled_record_never_reads_as_running(noise: bytes) -> None:
    line = (DATA / "22.05/job-shrunk.txt").read_text()
    cut = line[: line.index(" JobState=")] + noise.decode("latin-1").replace("JobState", "")
    assert parse_jobs(cut, {}).known[1].state is JobState.UNKNOWN


def test_of_an_array_only_the_task_that_was_asked_for_counts() -> None:
    text = "JobId=8 ArrayJobId=9 NumNodes=2\nJobId=9 ArrayJobId=9 NumNodes=3\n"
    assert own_record(text, 9) == "JobId=9 ArrayJobId=9 NumNodes=3\n"
    assert own_record(text, 8) == "JobId=8 ArrayJobId=9 NumNodes=2"
    assert own_record("slurm_load_jobs error", 8) == "slurm_load_jobs error"


def test_a_task_of_an_array_is_called_by_both_numbers() -> None:
    assert subject("JobId=9 ArrayJobId=9 ArrayTaskId=3 JobName=x", 9) == "9_3"
    assert subject("JobId=9 JobName=x JobId=9 ArrayJobId=1 ArrayTaskId=3 ", 9) == "9"
