"""Ranks, guardian and claim with real processes: what ends is noticed, what is stopped is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from unicrond.agent import processes
from unicrond.agent.claim import Claim
from unicrond.agent.environment import MARKER
from unicrond.agent.guardian import Guardian
from unicrond.agent.ranks import Launch, RankExit, Ranks
from unicrond.errors import Refused
from unicrond.model.run import Slot

GENERATION = 3
Story = Callable[[Ranks, list[RankExit]], Coroutine[None, None, None]]
DAEMON = "(setsid sh -c 'trap \"\" TERM; sleep 60' &) ; "


@pytest.fixture
def mark() -> Iterator[str]:
    mark = f"test-{os.getpid()}-{time.monotonic_ns()}/n1/"
    yield mark
    for stray in processes.strays(mark, {}):
        processes.kill(stray.pid)


def launch(mark: str, folder: Path, script: str, rank: int = 0, program: str = "sh") -> Launch:
    environment = {
        "PATH": os.environ["PATH"],
        MARKER: mark + "a",
        "UNICRON_GENERATION": str(GENERATION),
    }
    slot = Slot(rank, f"o.{rank}", "n1", rank)
    output = folder / f"{rank}.log"
    return Launch(GENERATION, slot, [program, "-c", script], environment, output)


def play(mark: str, story: Story) -> None:
    async def main() -> None:
        exits: list[RankExit] = []
        ranks = Ranks(mark, exits.append)
        ranks.watch(asyncio.get_running_loop())
        await story(ranks, exits)

    asyncio.run(main())


async def until(condition: Callable[[], object], seconds: float = 5.0) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "did not happen in time"
        await asyncio.sleep(0.002)
    return time.monotonic() - began


def test_the_end_of_a_rank_is_told_with_its_code(mark: str, tmp_path: Path) -> None:
    async def story(ranks: Ranks, exits: list[RankExit]) -> None:
        ranks.start([launch(mark, tmp_path, "echo out; echo err >&2; exit 7")])
        await until(lambda: exits)
        assert (exits[0].exit_code, exits[0].signal, exits[0].stopped) == (7, 0, False)
        assert (tmp_path / "0.log").read_text() == "out\nerr\n"

    play(mark, story)


def test_a_killed_rank_is_noticed_at_once_and_its_children_go_with_it(
    mark: str, tmp_path: Path
) -> None:
    async def story(ranks: Ranks, exits: list[RankExit]) -> None:
        ranks.start([launch(mark, tmp_path, "sleep 60 & echo ready; wait")])
        await until((tmp_path / "0.log").read_text)
        assert len(processes.strays(mark, {})) == 2
        os.kill(next(iter(ranks._running)), signal.SIGKILL)
        killed = time.monotonic()
        await until(lambda: exits)
        assert exits[0].signal == signal.SIGKILL
        assert exits[0].noticed - killed < 0.5  # 1 ms on an idle machine
        await until(lambda: not processes.strays(mark, {}))

    play(mark, story)


def test_a_stopped_rank_ends_as_quickly_as_any_other(mark: str, tmp_path: Path) -> None:
    async def story(ranks: Ranks, exits: list[RankExit]) -> None:
        ranks.start([launch(mark, tmp_path, "echo ready; exec sleep 60")])
        await until((tmp_path / "0.log").read_text)
        os.kill(next(iter(ranks._running)), signal.SIGSTOP)
        began = time.monotonic()
        assert await ranks.stop(GENERATION, 30.0) == ""
        assert time.monotonic() - began < 10

    play(mark, story)


def test_stopping_proves_that_stubborn_and_daemonised_processes_are_gone(
    mark: str, tmp_path: Path
) -> None:
    async def story(ranks: Ranks, exits: list[RankExit]) -> None:
        script = DAEMON + "trap '' TERM; echo ready; while :; do sleep 1; done"
        ranks.start([launch(mark, tmp_path, script)])
        await until((tmp_path / "0.log").read_text)
        await until(lambda: len(processes.strays(mark, {})) >= 3)
        assert await ranks.stop(GENERATION, grace_seconds=0.2) == ""
        assert processes.strays(mark, {}) == []
        assert exits[0].stopped

    play(mark, story)


def test_a_rank_that_obeys_sigterm_may_write_its_last_words(mark: str, tmp_path: Path) -> None:
    async def story(ranks: Ranks, exits: list[RankExit]) -> None:
        script = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
        ranks.start([launch(mark, tmp_path, script)])
        await until((tmp_path / "0.log").read_text)
        assert await ranks.stop(GENERATION, grace_seconds=5.0) == ""
        assert "saved" in (tmp_path / "0.log").read_text()

    play(mark, story)


def test_a_younger_generation_is_not_touched(mark: str, tmp_path: Path) -> None:
    async def story(ranks: Ranks, exits: list[RankExit]) -> None:
        ranks.start([launch(mark, tmp_path, "echo ready; sleep 60")])
        await until((tmp_path / "0.log").read_text)
        assert await ranks.stop(GENERATION - 1, grace_seconds=0.1) == ""
        assert list(ranks.running) == ["o.0"] and not exits
        await ranks.stop(GENERATION, grace_seconds=0.0)

    play(mark, story)


def test_a_rank_that_was_told_to_end_counts_as_running_no_more(mark: str, tmp_path: Path) -> None:
    async def story(ranks: Ranks, exits: list[RankExit]) -> None:
        ranks.start([launch(mark, tmp_path, "sleep 60")])
        assert list(ranks.running) == ["o.0"]
        ranks.kill(GENERATION)
        assert not ranks.running and not exits
        await until(lambda: exits)

    play(mark, story)


def test_ranks_of_an_agent_before_this_one_are_found_and_ended(mark: str, tmp_path: Path) -> None:
    left = launch(mark, tmp_path, "")
    with subprocess.Popen(["sleep", "60"], env=dict(left.environment)) as process:

        async def story(ranks: Ranks, exits: list[RankExit]) -> None:
            assert await ranks.stop(GENERATION, grace_seconds=0.0) == ""

        play(mark, story)
        assert process.wait(5) == -signal.SIGKILL


def test_where_one_rank_cannot_start_none_is_left_running(mark: str, tmp_path: Path) -> None:
    async def story(ranks: Ranks, exits: list[RankExit]) -> None:
        good = launch(mark, tmp_path, "sleep 60")
        bad = launch(mark, tmp_path, "", rank=1, program="/no/such/program")
        with pytest.raises(Refused, match="/no/such/program"):
            ranks.start([good, bad])
        await until(lambda: exits)
        assert exits[0].stopped and not ranks.running

    play(mark, story)


def test_ranks_die_with_their_agent(mark: str, tmp_path: Path) -> None:
    agent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, os, time\n"
            "from unicrond.agent.processes import dies_with\n"
            "subprocess.Popen(['sleep', '60'], preexec_fn=dies_with(os.getpid()))\n"
            "print('ready', flush=True); time.sleep(60)",
        ],
        env={**os.environ, MARKER: mark, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
    )
    with agent:
        assert agent.stdout and agent.stdout.readline() == b"ready\n"
        assert len(processes.strays(mark, {})) == 2
        agent.kill()
    deadline = time.monotonic() + 5
    while processes.strays(mark, {}):
        assert time.monotonic() < deadline


def marked(mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"], env={MARKER: mark + "a", "PATH": os.environ["PATH"]})


def test_the_guardian_ends_ranks_when_the_agent_does_not_tick(mark: str) -> None:
    with marked(mark) as rank:
        guardian = Guardian(mark + "a", timeout_seconds=0.3)
        for _ in range(5):
            assert guardian.tick()
            time.sleep(0.1)
        assert rank.poll() is None
        assert rank.wait(3) == -signal.SIGKILL
        os.close(guardian._writing)
        assert os.waitpid(guardian.pid, 0)[1] == 0


def test_the_guardian_ends_ranks_when_the_agent_is_gone(mark: str) -> None:
    with marked(mark) as rank, marked(mark[:-1] + "other/") as of_another_agent:
        guardian = Guardian(mark + "a", timeout_seconds=60.0)
        os.close(guardian._writing)
        assert rank.wait(3) == -signal.SIGKILL
        assert os.waitpid(guardian.pid, 0)[1] == 0
        assert of_another_agent.poll() is None
        of_another_agent.kill()


HOLDER = """
import asyncio, sys
from unicrond.agent.claim import Claim
claim = Claim(int(sys.argv[1]), "n1", "first")
assert claim.take() == ""
print("ready", flush=True)
async def live():
    claim.serve(asyncio.get_running_loop())
    await asyncio.sleep(60)
asyncio.run(live())
"""


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(os.getpid())],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout and process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


def taken(node: str) -> str:
    with closing(Claim(os.getpid(), node, "second")) as claim:
        return claim.take()


def test_the_second_agent_on_a_node_finds_the_first_and_leaves(
    holder: subprocess.Popen[bytes],
) -> None:
    assert taken("n1") == "first"
    assert taken("n2") == ""


def test_a_stuck_agent_is_ended_by_the_one_that_replaces_it(
    holder: subprocess.Popen[bytes],
) -> None:
    holder.send_signal(signal.SIGSTOP)
    assert taken("n1") == ""
    assert holder.wait(5) == -signal.SIGKILL


def test_a_dead_agents_claim_is_free(holder: subprocess.Popen[bytes]) -> None:
    holder.kill()
    holder.wait(5)
    assert taken("n1") == ""
