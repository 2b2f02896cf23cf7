"""The real pynvml over the lab's libnvidia-ml.so.1, in a process of its own for each story."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab.nvml import build

STORY = """
import json, sys, threading, time
from pathlib import Path
from unicrond.agent.sensors.nvml import Nvml
library, state, text = sys.argv[1:]
sensor = Nvml(library, None)
assert list(sensor.look()) == []
started = time.monotonic()
with open(state, "a") as file:
    file.write(text)
while time.monotonic() < started + 8:
    seen = list(sensor.look())
    if seen:
        took = time.monotonic() - started
        print(json.dumps([took, [[s.kind, s.severity, s.where] for s in seen]]))
        break
"""
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    assert build(path)
    return path


def told(tmp_path: Path, library: Path, text: str) -> tuple[float, list[list[str]]] | None:
    state = tmp_path / "state"
    state.write_text("gpus 8\n1 ecc 5\nevent 1 0 8 79\n")  # from before: nobody's fault
    done = subprocess.run(
        [sys.executable, "-c", STORY, str(library), str(state), text],
        capture_output=True,
        text=True,
        timeout=60,
        env={"UNICRON_LAB_NVML": str(state), "PYTHONPATH": str(Path(__file__).parents[2])},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if not done.stdout:
        return None
    seconds, seen = json.loads(done.stdout)
    return seconds, seen


@pytest.mark.parametrize(
    ("text", "kind", "severity", "within_seconds"),
    [
        ("event 2 3 8 79\n", "GPU fell off the bus", "SEV1", 0.5),
        ("event 2 3 8 31\n", "illegal memory access", "SEV2", 0.5),
        ("3 ecc 1\nevent 2 3 2 0\n", "ECC error", "SEV1", 0.5),
        ("3 lost 1\n", "GPU fell off the bus", "SEV1", 2.5),
        ("3 links 1\n", "NVLink error", "SEV1", 7.0),
        ("3 recovery 2\n", "GPU driver error", "SEV1", 7.0),
    ],
)
def test_what_the_driver_tells_is_seen_in_time(
    tmp_path: Path, library: Path, text: str, kind: str, severity: str, within_seconds: float
) -> None:
    seen = told(tmp_path, library, text)
    assert seen is not None
    assert seen[1] == [[kind, severity, "gpu 3"]]
    assert seen[0] < within_seconds


def test_clean_up_after_a_killed_process_is_not_told(tmp_path: Path, library: Path) -> None:
    assert told(tmp_path, library, "event 2 3 8 45\n") is None
