"""Short stories of many ranks: who is the root, and who its victims."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.diagnosis import Report, diagnose
from detectors.verdict import Kind
from tests.data.signals.labelled import messages
from unicrond.model.incident import Severity

CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.12]:431"
EXCEPTION = "Traceback (most recent call last):\nKeyError: 'labels'"
IN_COLLECTIVE = (
    '  File "torch/distributed/distributed_c10d.py", line 2501 in all_reduce\n'
    '  File "train.py", line 31 in step\n'
)
IN_LOADER = '  File "data.py", line 12 in read\n  File "train.py", line 29 in step\n'


def timed_out(number: int, operation: str = "ALLREDUCE", size: int = 10) -> str:
    return (
        "[E ProcessGroupNCCL.cpp:563] Watchdog caught collective operation timeout: WorkNCCL("
        f"SeqNum={number}, OpType={operation}, NumelIn={size}, NumelOut={size}, Timeout(ms)=600000)"
        " ran for 600057 milliseconds before timing out."
    )


def recorder(pending: str, entries: int = 3) -> str:
    return f"flight recorder v2.9 nccl 2.27.3 entries {entries}\n{pending}\npg_status 0 {{}}"


def entry(group: int, number: int) -> str:
    return f"pg=('{group}', 'TENSOR_PARALLEL') seq={number} op=nccl:all_reduce state=scheduled"


def test_the_rank_that_raised_is_the_root_of_those_that_lost_it() -> None:
    root = diagnose(
        [
            *(Report(rank, "n1", CLOSED, 10.0) for rank in (0, 1, 3)),
            Report(2, "n1", EXCEPTION, 10.1),
        ]
    )
    assert (root.root_rank, root.kind) == (2, Kind.USER_BUG)
    assert "rank 2" in root.reason


def test_a_silent_rank_is_the_root_where_the_rest_only_lost_a_peer() -> None:
    root = diagnose([*(Report(rank, "n1", CLOSED) for rank in (0, 2, 3)), Report(1, "n1", "")])
    assert root.root_rank == 1


def test_the_rank_behind_in_its_collective_holds_up_the_others() -> None:
    reports = [Report(rank, "n1", timed_out(310 if rank == 5 else 311)) for rank in range(8)]
    assert diagnose(reports).root_rank == 5


def test_the_only_rank_without_a_report_is_the_one() -> None:
    reports = [Report(rank, "n1", timed_out(311)) for rank in (0, 1, 3)]
    assert diagnose(reports).root_rank == 2


def test_without_the_stores_host_rank_0_is_the_one() -> None:
    lost = "Failed to recv, got 0 bytes. Connection was likely closed."
    assert diagnose([Report(rank, "n1", lost) for rank in (1, 2, 5)]).root_rank == 0


def test_ranks_in_different_collectives_mean_the_program_is_wrong() -> None:
    root = diagnose(
        [Report(0, "n1", timed_out(7, size=4311252)), Report(1, "n1", timed_out(7, size=1))]
    )
    assert (root.root_rank, root.root_node, root.kind) == (None, "n1", Kind.USER_BUG)


def test_one_rank_in_another_collective_than_all_the_rest_is_the_root() -> None:
    reports = [Report(rank, "n1", timed_out(7)) for rank in range(3)]
    assert diagnose([*reports, Report(3, "n1", timed_out(7, "BROADCAST"))]).root_rank == 3


def test_an_xid_of_the_node_beats_the_cuda_error_and_names_the_rank_it_hit() -> None:
    root = diagnose(
        [
            Report(0, "n1", timed_out(3)),
            Report(4, "n2", "RuntimeError: CUDA error: unspecified launch failure"),
            Report(None, "n2", "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."),
        ]
    )
    assert (root.root_rank, root.root_node) == (4, "n2")
    assert (root.kind, root.severity) == (Kind.GPU_LOST, Severity.SEV1)


def test_a_node_that_slurm_names_is_the_root_though_it_says_nothing() -> None:
    root = diagnose(
        [Report(0, "n1", "srun: error: Node failure on n2"), Report(1, "n2", ""),
         Report(2, "n3", CLOSED)]
    )  # fmt: skip
    assert (root.root_rank, root.root_node, root.severity) == (1, "n2", Severity.SEV1)


def test_the_launchers_first_failure_names_the_rank() -> None:
    table = (
        "Root Cause (first observed failure):\n[0]:\n  time      : 2024-02-01_10:11:12\n"
        "  host      : node01\n  rank      : 3 (local_rank: 3)\n  exitcode  : -9 (pid: 12112)"
    )
    assert diagnose([Report(0, "n1", table), Report(1, "n1", CLOSED)]).root_rank == 3


def test_a_rank_named_as_missing_by_the_others_is_the_root() -> None:
    words = (
        f"{timed_out(3)}\n - [0, 1] joined but didn't finish collective #3\n"
        " - [2] finished collective #2, but didn't join collective #3 (count from 1)"
    )
    assert diagnose([Report(0, "n1", words), Report(1, "n1", timed_out(3))]).root_rank == 2


def test_of_two_alike_the_first_in_time_is_the_root() -> None:
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB"
    root = diagnose([Report(0, "n1", oom, 19.0), Report(1, "n1", oom, 12.0)])
    assert root.root_rank == 1


def test_a_rank_elsewhere_while_the_rest_wait_is_the_root() -> None:
    stacks = [Report(rank, "n1", IN_COLLECTIVE) for rank in (0, 1, 3)]
    assert diagnose([*stacks, Report(2, "n1", IN_LOADER)]).root_rank == 2
    waits = [Report(rank, "n1", timed_out(3)) for rank in (0, 1, 3)]
    assert diagnose([*waits, Report(2, "n1", "saving shard 3 of 4")]).root_rank == 2


def test_flight_recorders_show_who_is_behind_and_who_is_in_no_collective() -> None:
    behind = [
        Report(r, "n1", recorder(entry(r // 4, 90 if r in (5, 9) else 99))) for r in range(12)
    ]
    assert diagnose(behind).root_rank == [5, 9]
    idle = [Report(r, "n1", recorder(entry(r // 4, 99))) for r in range(12) if r != 6]
    assert diagnose([*idle, Report(6, "n1", recorder("", entries=0))]).root_rank == 6


def test_a_peer_on_its_own_node_is_a_rank_s_own_proxy() -> None:
    root = diagnose(
        [
            Report(93, "n17", "alloc.h:178 NCCL WARN Cuda failure 'out of memory'"),
            Report(93, "n17", "NCCL WARN socketProgress: Connection closed by remote peer n17<40>"),
        ]
    )
    assert (root.root_rank, root.kind) == (93, Kind.GPU_OOM)


def test_the_idle_gpu_among_gpus_that_spin_at_low_power_is_the_root() -> None:
    row = "| N/A   30C    P0    %dW / 400W |  15995MiB / 81920MiB |    %3d%%      Default |"
    reports = [Report(rank, "n6", row % (87, 100)) for rank in (1, 2, 3)]
    assert diagnose([*reports, Report(0, "n6", row % (68, 0))]).root_rank == 0


def test_victims_alone_decide_little() -> None:
    root = diagnose([Report(rank, f"n{rank}", timed_out(3)) for rank in range(4)])
    assert root.root_rank is None
    assert root.confidence < 0.5


def test_reports_without_a_failure_have_no_root() -> None:
    root = diagnose([Report(0, "n1", "step 12 | loss 2.1"), Report(1, "n1", "step 12 | loss 2.1")])
    assert (root.root_rank, root.kind, root.severity) == (None, Kind.NON_FAILURE, Severity.NONE)


def test_no_reports_have_no_root() -> None:
    assert diagnose([]).root_rank is None


@pytest.mark.parametrize("words", ["ranks 0-99999999999 failed to pass monitoredBarrier"])
def test_a_damaged_range_of_ranks_does_not_fill_the_memory(words: str) -> None:
    assert diagnose([Report(1, "n1", words)]) is not None


REPORTS = st.lists(
    st.builds(
        Report,
        rank=st.none() | st.integers(-5, 40),
        node=st.sampled_from(["", "n1", "n2", "10.0.0.2"]),
        text=st.sampled_from([one.text for one in messages()]) | st.text(max_size=60),
        at=st.none() | st.floats(-1e6, 1e6),
    ),
    max_size=8,
)


@given(reports=REPORTS)
def test_no_reports_make_it_raise_and_confidence_stays_a_share(reports: list[Report]) -> None:
    assert 0.0 <= diagnose(reports).confidence < 1.0


@given(reports=REPORTS)
def test_the_order_of_reports_changes_nothing_where_clocks_tell_them_apart(
    reports: list[Report],
) -> None:
    apart = [
        Report(rank, f"n{rank}", one.text, float(rank * 10)) for rank, one in enumerate(reports)
    ]
    assert diagnose(apart).root_rank == diagnose(apart[::-1]).root_rank


def test_a_rank_that_fell_silent_is_whose_death_the_launcher_of_its_node_counts() -> None:
    counted = "E0614 10:00:01 torch/x/api.py:833] failed (exitcode: -9) local_rank: 5 (pid: 14)"
    root = diagnose(
        [Report(None, "n1", counted, 1.0), Report(8, "n2", CLOSED, 1.1), Report(5, "n1", "")]
    )
    assert (root.root_rank, root.kind) == (5, Kind.HOST_OOM)


def test_a_node_of_which_peers_lost_their_connections_is_lost_and_else_it_hangs() -> None:
    quiet = Report(None, "n3", "")
    cut = diagnose([Report(0, "n1", CLOSED), Report(1, "n2", CLOSED), quiet])
    waits = diagnose([Report(0, "n1", timed_out(7)), Report(1, "n2", timed_out(7)), quiet])
    assert (cut.root_node, cut.kind) == ("n3", Kind.LOST)
    assert (waits.root_node, waits.kind) == ("n3", Kind.HANG)


def test_an_end_that_slurm_planned_explains_what_ranks_print_with_it() -> None:
    ended = "slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO PREEMPTION"
    died = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4 got signal: 15"
    reports = [Report(None, "n1", ended + " ***", 1.0), Report(0, "n1", died, 1.2)]
    assert diagnose(reports).severity is Severity.NONE
    assert diagnose([*reports, Report(3, "n2", EXCEPTION, 0.5)]).root_rank == 3


def test_the_rank_whose_own_watchdog_stands_still_holds_up_those_that_time_out() -> None:
    stuck = "[rank1]:[E ProcessGroupNCCL.cpp:1484] [PG ID 0 Rank 1] ProcessGroupNCCL's watchdog got"
    stuck += " stuck for 480 seconds without making progress in monitoring enqueued collectives."
    reports = [Report(0, "n1", timed_out(9), 600), Report(2, "n1", timed_out(9), 600)]
    assert diagnose([*reports, Report(1, "n1", stuck, 480)]).root_rank == 1


def test_what_killed_a_rank_is_not_explained_by_what_came_minutes_later() -> None:
    found = diagnose(
        [
            Report(3, "node01", "KeyError: 'input_ids'", 10.0),
            Report(0, "node01", CLOSED, 11.0),
            Report(
                9, "node02", "slurmstepd: error: Detected 1 oom_kill event in StepId=94.0.", 200.0
            ),
        ]
    )
    assert (found.root_rank, found.kind) == (3, Kind.USER_BUG)


def test_a_cancelled_job_has_no_root_but_the_one_who_cancelled_it() -> None:
    words = "slurmstepd: error: *** JOB 6231 ON node01 CANCELLED AT 2024-09-12T11:01:22 ***"
    terminated = "srun: error: node02: task 1: Terminated"
    found = diagnose([Report(None, "node01", words, 1.0), Report(8, "node02", terminated, 1.2)])
    assert (found.root_rank, found.kind, found.severity) == (None, Kind.CANCELLED, Severity.NONE)
