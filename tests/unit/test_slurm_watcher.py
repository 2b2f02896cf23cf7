"""The watch process and the one that minds it, with real processes and recorded text."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from unicrond.model.cluster import Snapshot
from unicrond.model.events import SnapshotTaken
from unicrond.slurm.codec import Decoder
from unicrond.slurm.watch import SystemClock, main, pause_seconds
from unicrond.slurm.watcher import SlurmWatcher, watch_command

DATA = Path(__file__).parent.parent / "data/slurm/22.05"
CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def prefix(tmp_path: Path) -> list[str]:
    script = tmp_path / "stand-in"
    script.write_text(
        f"""case "$*" in
*"show config"*) cat {DATA}/config.txt;;
*"show node"*) cat {DATA}/nodes-busy.txt;;
*"show job"*) cat {DATA}/jobs-mixed.txt;;
*squeue*) seq 12;;
esac
"""
    )
    return ["sh", str(script)]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))


def _emitted(argv: list[str], enough: Callable[[list[Snapshot]], bool]) -> list[Snapshot]:
    """What a watcher told until it was enough, at most for 20 s."""
    told: list[Snapshot] = []

    async def play() -> None:
        done = asyncio.Event()

        def emit(event: SnapshotTaken) -> None:
            told.append(event.snapshot)
            if enough(told):
                done.set()

        task = asyncio.create_task(SlurmWatcher(SystemClock(), emit, argv, 1.0).run())
        await asyncio.wait_for(done.wait(), 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(play())
    return told


def test_snapshots_come_in_one_after_another(prefix: list[str]) -> None:
    told = _emitted(watch_command(0.1, 5, prefix), lambda told: len(told) == 3)
    assert all(len(seen.nodes or {}) == 6 for seen in told)
    assert told[0].at < told[1].at < told[2].at


def test_a_watcher_that_dies_makes_the_cluster_unknown_and_is_started_again(
    prefix: list[str], tmp_path: Path
) -> None:
    once = tmp_path / "once"
    once.write_text(f'exec {sys.executable} -m unicrond.slurm.watch -- "$@" </dev/null\n')
    argv = ["sh", str(once), *prefix]
    told = _emitted(argv, lambda told: len(told) == 3)
    assert [seen.nodes is None for seen in told] == [False, True, False]
    assert told[1].error == "the Slurm watcher ended"


@pytest.mark.parametrize(
    ("script", "trouble"),
    [
        ("sleep 600", "the Slurm watcher said nothing for 1 s"),
        ("echo hello; sleep 600", "the Slurm watcher said nonsense"),
    ],
)
def test_a_watcher_that_hangs_or_babbles_is_ended(script: str, trouble: str) -> None:
    told = _emitted(["sh", "-c", f"exec 2>&1; {script}"], lambda told: len(told) == 1)
    assert told[0].nodes is None
    assert trouble in told[0].error


def test_a_watcher_that_cannot_start_is_told() -> None:
    told = _emitted(["/no/such/program"], lambda told: len(told) == 1)
    assert "cannot be started" in told[0].error


def test_the_process_ends_with_its_parent(prefix: list[str]) -> None:
    process = subprocess.Popen(
        watch_command(30, 5, prefix), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    look = Decoder().decode(process.stdout.readline())
    assert len(look.snapshot.nodes or {}) == 6
    closed_at = time.monotonic()
    process.stdin.close()
    assert process.wait(5) == 0
    assert time.monotonic() - closed_at < 2
    process.stdout.close()


def test_a_slow_slurmctld_is_asked_less_often() -> None:
    assert pause_seconds(2, took=0.1) == pytest.approx(1.9)
    assert pause_seconds(2, took=1) == pytest.approx(4)
    assert pause_seconds(2, took=20) == pytest.approx(10)
    assert pause_seconds(2, took=40) == 0
    assert pause_seconds(60, took=1) == pytest.approx(59)


@pytest.mark.parametrize("words", [["--interval", "0"], ["--timeout", "often"]])
def test_bad_options_end_with_two(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
