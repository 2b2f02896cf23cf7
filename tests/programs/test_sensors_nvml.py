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
while time.monotonic() < started + 7:
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


# what happens on GPU 3, and what is seen of it within how many seconds
STORIES: dict[str, tuple[tuple[str, str] | None, float]] = {
    "event 2 3 8 79\n": (("GPU fell off the bus", "SEV1"), 0.5),
    "event 2 3 8 31\n": (("illegal memory access", "SEV2"), 0.5),
    "3 ecc 1\nevent 2 3 2 0\n": (("ECC error", "SEV1"), 0.5),
    "3 lost 1\n": (("GPU fell off the bus", "SEV1"), 2.5),
    "3 links 1\n": (("NVLink error", "SEV1"), 7.0),
    "3 recovery 2\n": (("GPU driver error", "SEV1"), 7.0),
    "event 2 3 8 45\n": (None, 7.0),  # clean-up after a killed process
}


def begin(folder: Path, library: Path, text: str) -> subprocess.Popen[str]:
    folder.mkdir()
    state = folder / "state"
    state.write_text("gpus 8\n1 ecc 5\nevent 1 0 8 79\n")  # from before: nobody's fault
    return subprocess.Popen(
        [sys.executable, "-c", STORY, str(library), str(state), text],
        stdout=subprocess.PIPE,
        text=True,
        env={"UNICRON_LAB_NVML": str(state), "PYTHONPATH": str(Path(__file__).parents[2])},
    )


def test_what_the_driver_tells_is_seen_in_time(tmp_path: Path, library: Path) -> None:
    """All at once: what takes long is the waiting."""
    begun = {text: begin(tmp_path / str(i), library, text) for i, text in enumerate(STORIES)}
    told = {text: process.communicate(timeout=60)[0] for text, process in begun.items()}
    assert [process.returncode for process in begun.values()] == [0] * len(STORIES)
    for text, (expected, within_seconds) in STORIES.items():
        seconds, seen = json.loads(told[text] or "[0, []]")
        assert seen == ([[*expected, "gpu 3"]] if expected else []), text
        assert seconds < within_seconds, text
