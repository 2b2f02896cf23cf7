"""The demo as a person starts it: it holds, and leaves nothing behind however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import Lab

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).resolve().parents[2]
NAME = "e2e-demo"


def start(*options: str) -> subprocess.Popen[str]:
    """As scripts/demo does once everything is set up."""
    return subprocess.Popen(
        [sys.executable, "-m", "demo", "--name", NAME, *options],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    left = Lab(NAME).paths.state.exists()
    Lab(NAME).down()
    assert not left, "the demo left its lab behind"


@pytest.mark.timeout(600)
def test_all_of_it_holds_within_five_minutes(tmp_path: Path) -> None:
    began = time.monotonic()
    picture = tmp_path / "pictures/demo.svg"
    demo = start("--picture", str(picture))
    told, _ = demo.communicate(timeout=540)
    assert demo.returncode == 0, told
    assert time.monotonic() - began < 300
    assert "All of it held" in told
    assert "\x1b[" not in told, "no colours where nobody sees them"
    assert "http" not in picture.read_text().replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_takes_the_lab_down(number: signal.Signals) -> None:
    demo = start()
    deadline = time.monotonic() + 60
    while not Lab(NAME).is_up() and time.monotonic() < deadline:
        time.sleep(0.2)
    demo.send_signal(number)
    told, _ = demo.communicate(timeout=60)
    assert demo.returncode == 130, told


def test_a_name_that_no_lab_can_have_ends_with_2_and_a_sentence() -> None:
    demo = start("--name", "Not A Name")
    told, _ = demo.communicate(timeout=30)
    assert (demo.returncode, told.startswith("demo: lab name")) == (2, True), told
