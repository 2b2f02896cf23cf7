"""Whole runs without unicrond and without Slurm: agents of a few nodes on one machine.

They mostly wait, so a few of them are played at the same time.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from agentworld import PROGRAM, Job, Orders, until

AT_ONCE = 4
Story = Callable[[Path], None]

WORK = "echo $RANK of $WORLD_SIZE in $UNICRON_GENERATION; exec sleep 60"
FAILS_FIRST = (
    'echo $UNICRON_GENERATION; [ "$UNICRON_GENERATION" = 1 ] && exec sleep 60; exec sleep 0.3'
)


@pytest.fixture(scope="module")
def stories(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[None]]]:
    chosen = [i for i in request.session.items if i.path == request.path]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {
            item.name: pool.submit(item.function.story, tmp_path_factory.mktemp("job"))
            for item in chosen
            if isinstance(item, pytest.Function)
        }


def beside_others(story: Story) -> Callable[..., None]:
    def test(stories: dict[str, Future[None]], request: pytest.FixtureRequest) -> None:
        stories[request.node.name].result()

    test.story = story  # type: ignore[attr-defined]
    return test


@beside_others
def test_a_run_starts_without_unicrond_and_ends_when_its_ranks_did(tmp_path: Path) -> None:
    with Job(tmp_path, 3, ["sh", "-c", "echo $RANK/$WORLD_SIZE on $GROUP_RANK"]) as job:
        assert job.exit_codes() == [0, 0, 0]
        assert [job.output(1, rank) for rank in range(3)] == [
            "0/3 on 0\n",
            "1/3 on 1\n",
            "2/3 on 2\n",
        ]
        copied = set(job.file("slurm.out").splitlines())
        assert {"[0] 0/3 on 0", "[1] 1/3 on 1", "[2] 2/3 on 2"} <= copied
        assert job.file("verdict") == "0\n"


@beside_others
def test_a_rank_that_fails_is_answered_by_the_next_generation(tmp_path: Path) -> None:
    with Job(tmp_path, 2, ["sh", "-c", FAILS_FIRST]) as job:
        until(lambda: job.output(1, 0) and job.output(1, 1))
        job.kill_rank("n2")
        assert job.exit_codes() == [0, 0]
        assert job.output(2, 0) == job.output(2, 1) == "2\n"
        assert "[unicron] rank 1 on n2 ended by signal 9" in job.file("slurm.out")


@beside_others
def test_a_dead_agent_is_started_again_and_the_run_completes(tmp_path: Path) -> None:
    with Job(tmp_path, 2, ["sh", "-c", FAILS_FIRST]) as job:
        until(lambda: job.output(1, 0) and job.output(1, 1))
        job.signal_agent("n2", signal.SIGKILL)
        until(lambda: not job.ranks("n2"), 2.0)
        assert job.exit_codes(30.0) == [0, -signal.SIGKILL]
        assert job.output(2, 1) == "2\n"
        assert job.file("verdict") == "0\n"


@beside_others
def test_the_leaders_death_is_no_different(tmp_path: Path) -> None:
    with Job(tmp_path, 2, ["sh", "-c", FAILS_FIRST]) as job:
        until(lambda: job.output(1, 0) and job.output(1, 1))
        job.signal_agent("n1", signal.SIGKILL)
        assert job.exit_codes(30.0) == [-signal.SIGKILL, 0]
        assert job.output(2, 0) == job.output(2, 1) == "2\n"


@beside_others
def test_a_stopped_agents_ranks_are_gone_when_its_lease_is_over(tmp_path: Path) -> None:
    with Job(tmp_path, 2, ["sh", "-c", WORK], unattended=60.0) as job:
        until(lambda: job.ranks("n1") and job.ranks("n2"))
        job.signal_agent("n2", signal.SIGSTOP)
        until(lambda: not job.ranks("n2"), job.lease + 1.0)
        until(lambda: not job.ranks("n1"))
        until(lambda: "heard neither unicrond nor n2" in job.log("n1"))


@beside_others
def test_ranks_do_not_outlive_those_that_they_train_with(tmp_path: Path) -> None:
    with Job(tmp_path, 2, ["sh", "-c", WORK], unattended=60.0) as job:
        until(lambda: job.ranks("n1") and job.ranks("n2"))
        job.kill_rank("n1")
        until(lambda: not job.ranks("n2"), job.lease + 2.0)
        until(lambda: "heard neither unicrond nor n1" in job.log("n2"))


@beside_others
def test_told_by_slurm_to_end_an_agent_leaves_nothing_behind(tmp_path: Path) -> None:
    stubborn = (
        "(setsid sh -c 'trap \"\" TERM; sleep 60' &); trap '' TERM; echo up; sleep 60; sleep 60"
    )
    with Job(tmp_path, 1, ["sh", "-c", stubborn]) as job:
        until(lambda: job.output(1, 0))
        assert len(job.ranks("n1")) >= 3
        job.signal_agent("n1", signal.SIGTERM)
        assert job.exit_codes() == [143]
        assert job.ranks("n1") == []
        assert not list(tmp_path.glob("unicron-*"))  # the socket's folder


@beside_others
def test_what_fails_again_is_requeued_once_and_counted(tmp_path: Path) -> None:
    with Job(tmp_path, 1, ["sh", "-c", "exit 7"]) as job:
        until(lambda: job.file("requeued"))
        assert job.file("requeued").split()[0] == str(job.run_id)
        record = json.loads(job.file("record.json"))
        assert record == {"generation": 2, "requeues_without_progress": 1}


@beside_others
def test_a_job_that_is_over_is_not_brought_back_by_an_agent_that_missed_its_end(
    tmp_path: Path,
) -> None:
    (tmp_path / "job-over").touch()
    with Job(tmp_path, 1, ["sh", "-c", "exit 7"]) as job:
        until(lambda: "requeueing the job" in job.log("n1"))
        until(lambda: json.loads(job.file("record.json"))["requeues_without_progress"] == 1)
        time.sleep(1.0)
        assert not job.file("requeued")


def leaves_once(told: str, folder: Path) -> None:
    with Job(folder, 2, ["sh", "-c", WORK], unattended=60.0) as job:
        until(lambda: job.ranks("n1") and job.ranks("n2"))
        job.signal_agent("n2", signal.SIGSTOP)
        until(lambda: "heard neither unicrond nor n2" in job.log("n1"))
        assert job.agents["n1"].poll() is None, "Slurm still counts it to the job"
        (folder / told).touch()
        assert job.agents["n1"].wait(30.0) == 143


@beside_others
def test_an_agent_that_was_cut_off_leaves_once_its_job_is_over(tmp_path: Path) -> None:
    leaves_once("job-over", tmp_path)


@beside_others
def test_an_agent_that_was_cut_off_leaves_once_slurm_took_its_node(tmp_path: Path) -> None:
    leaves_once("taken-n1", tmp_path)


@beside_others
def test_after_two_requeues_without_progress_the_run_ends_with_its_own_code(
    tmp_path: Path,
) -> None:
    (tmp_path / "record.json").write_text('{"generation": 2002, "requeues_without_progress": 2}')
    with Job(tmp_path, 2, ["sh", "-c", '[ "$RANK" = 0 ] && sleep 60; exit 7']) as job:
        assert job.exit_codes() == [7, 7]
        assert job.file("verdict") == "7\n"
        assert job.output(2003, 0) == ""
        assert not job.file("requeued")


@beside_others
def test_exit_code_93_ends_the_run_at_once(tmp_path: Path) -> None:
    with Job(tmp_path, 2, ["sh", "-c", "exit 93"], unattended=60.0) as job:
        assert job.exit_codes() == [93, 93]


@beside_others
def test_nothing_is_restarted_while_slurmctld_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "slurmctld-down").touch()
    with Job(tmp_path, 1, ["sh", "-c", FAILS_FIRST]) as job:
        until(lambda: job.output(1, 0))
        job.kill_rank("n1")
        until(lambda: "slurmctld does not answer here" in job.log("n1"))
        assert job.output(2, 0) == ""
        (tmp_path / "slurmctld-down").unlink()
        assert job.exit_codes() == [0]


@beside_others
def test_a_program_that_a_node_does_not_have_is_reported(tmp_path: Path) -> None:
    with Job(tmp_path, 1, ["/no/such/program"], unattended=60.0) as job:
        until(lambda: "kind=start_failed" in job.log("n1"))
        assert "/no/such/program" in job.log("n1")


def start(generation: int, *slots: tuple[int, str, str, int]) -> dict[str, object]:
    named = [list(slot) for slot in slots]
    assignment = {"generation": generation, "order": f"o{generation}", "slots": named}
    return {"assignment": assignment, "master_node": "n1", "master_port": 12000 + generation}


@beside_others
def test_one_node_is_replaced_and_the_other_keeps_its_rank_in_the_new_generation(
    tmp_path: Path,
) -> None:
    first = start(1, (0, "o1.0", "n1", 0), (1, "o1.1", "n2", 0))
    second = start(2, (0, "o2.0", "n2", 0), (1, "o1.0", "n1", 0))
    with Orders(tmp_path, 3, PROGRAM, unattended=60.0) as job:
        given = job.give(("n1", "start_ranks", first), ("n2", "start_ranks", first))
        assert [body["state"] for body in given] == ["done", "done"]
        until(lambda: "in 0 2 1" in job.output(1, 0) and "in 1 2 1" in job.output(1, 1))
        [kept] = job.ranks("n1")
        job.kill_rank("n2")
        until(lambda: "told to stay" in job.output(1, 0))
        given = job.give(
            ("n1", "start_ranks", second),
            ("n2", "start_ranks", second),
            ("n1", "stop_ranks", {"generation": 1}),
            ("n1", "start_ranks", first),
        )
        assert [body["state"] for body in given] == ["done", "done", "done", "refused"]
        until(lambda: "in 1 2 2 127.0.0.1 12002" in job.output(1, 0))
        until(lambda: "in 0 2 2 127.0.0.1 12002" in job.output(2, 0))
        assert job.ranks("n1") == [kept]
        job.kill_rank("n1")
        until(lambda: "[unicron] rank 1 on n1 ended by signal 9" in job.file("slurm.out"))
        until(lambda: "told to stay" in job.output(2, 0))


@beside_others
def test_the_leader_tells_those_who_do_not_hear_each_other_that_their_generation_broke(
    tmp_path: Path,
) -> None:
    first = start(1, (0, "o1.0", "n4", 0), (1, "o1.1", "n5", 0))  # neither is a hub
    with Orders(tmp_path, 6, PROGRAM, unattended=60.0) as job:
        job.give(("n4", "start_ranks", first), ("n5", "start_ranks", first))
        until(lambda: "in 0 2 1" in job.output(1, 0) and "in 1 2 1" in job.output(1, 1))
        job.kill_rank("n4")
        until(lambda: "told to stay" in job.output(1, 1))


FAILS_LATER = "echo torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB; sleep 60"


@beside_others
def test_what_a_living_rank_prints_is_told_and_nothing_follows(tmp_path: Path) -> None:
    with Job(tmp_path, 1, ["sh", "-c", FAILS_LATER]) as job:
        until(lambda: "signal kind=printed torch.OutOfMemoryError" in job.log("n1"))
        assert len(job.ranks("n1")) == 2
        assert job.output(2, 0) == ""
