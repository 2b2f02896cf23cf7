"""Faults that programs do to themselves, and slow processes: what can be tried without a lab."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from lab import LabError, LabSpec, drag, processes
from lab.faults import Place, Target, inject
from lab.layout import LabPaths

WORK = """
import sys, time
print("ready", flush=True)
while True:
    end = time.thread_time() + 0.004
    while time.thread_time() < end:
        pass
    sys.stdout.write(".")
    sys.stdout.flush()
"""


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", WORK], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def state(pid: int) -> str:
    return (processes.PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]


def test_a_dragged_process_is_stopped_for_its_part_of_the_time_and_goes_on_after(
    busy: subprocess.Popen[bytes],
) -> None:
    slow = subprocess.Popen([sys.executable, "-m", drag.MODULE, str(busy.pid), "100"])
    deadline = time.monotonic() + 20
    while state(busy.pid) != "T" and time.monotonic() < deadline:
        time.sleep(0.005)
    seen: list[bool] = []
    while len(seen) < 60:
        time.sleep(0.007)
        seen.append(state(busy.pid) == "T")
    slow.send_signal(signal.SIGTERM)
    assert slow.wait(timeout=5) == 0
    assert 5 < sum(seen) < 55
    assert state(busy.pid) != "T"


def test_dragging_ends_with_the_process(busy: subprocess.Popen[bytes]) -> None:
    busy.kill()
    busy.wait()
    assert drag.main([str(busy.pid), "50"]) == 0


@pytest.mark.parametrize(
    ("kind", "target", "sentence"),
    [
        ("hang", Target(), "which rank"),
        ("exception", Target(), "which rank"),
        ("nan", Target(), "which rank"),
        ("straggler", Target(node="n1", percent=0), "--percent 0: a rank gets 1 to 1000"),
        ("disk-full", Target(node="n1", folder="relative"), "is without power|which folder"),
        ("disk-full", Target(), "which node"),
    ],
)
def test_what_is_missing_or_wrong_is_named(kind: str, target: Target, sentence: str) -> None:
    place = Place(LabPaths("no-such-lab"), LabSpec(nodes=2), head=1)
    with pytest.raises(LabError, match=sentence):
        inject(kind, place, target)
