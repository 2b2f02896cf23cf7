"""A command that changes Slurm outlives a unicrond that is killed, but not by much: whoever takes
over waits for no longer than such a command may take."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SECONDS = 1.5
ACT = f"""from unicrond.slurm.command import SlurmCommand
SlurmCommand(timeout_seconds={SECONDS}).act("sh", "-c", "echo $$ >command; exec sleep 60")
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_command_ends_in_time_whatever_becomes_of_unicrond(
    tmp_path: Path, number: signal.Signals
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    program = subprocess.Popen([sys.executable, "-c", ACT], cwd=tmp_path, env=environment)
    try:
        told = tmp_path / "command"
        until(lambda: told.exists() and told.read_text().strip() != "", 20)
        program.send_signal(number)
        until(lambda: ended(int(told.read_text())), SECONDS + 1)
    finally:
        program.kill()
        program.wait()


def ended(pid: int) -> bool:
    """A zombie has, too: its parent may be stopped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
