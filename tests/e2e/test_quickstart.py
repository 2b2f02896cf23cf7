"""The quick start, typed as it is written, on a lab of its own."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from stage import until

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).parents[2]
LAB = f"{os.environ.get('UNICRON_E2E_LAB', 'e2e')}-quick"
LAB_COMMAND = re.compile(r"scripts/unicronctl lab (\w+)")


def blocks() -> list[list[str]]:
    """Of the part on a laptop: what is typed on the machine, in the lab's shell, on the machine."""
    text = (ROOT / "docs" / "quickstart.md").read_text()
    part = text.partition("## On a laptop")[2].partition("\n## ")[0]
    found = re.findall(r"(?:^ {4}.*\n)+", part.replace("\\\n        ", ""), re.MULTILINE)
    return [[line.split("  #")[0].strip() for line in block.splitlines()] for block in found]


def typed(line: str, seconds: float = 120) -> str:
    """In a shell, with the name of our lab put in."""
    line = LAB_COMMAND.sub(rf"scripts/unicronctl lab \1 --name {LAB}", line)
    done = subprocess.run(
        ["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    return done.stdout


def in_lab(line: str, user: str = "alice") -> str:
    if line.startswith("tail -f"):
        line = f"timeout 2 {line} || true"  # a person looks on for as long as he likes
    return typed(f"scripts/unicronctl lab exec -u {user} -- bash -c '{line}'")


@pytest.fixture
def torn_down() -> Iterator[None]:
    yield
    typed("scripts/unicronctl lab down")


@pytest.mark.usefixtures("torn_down")
def test_the_quick_start_works_as_it_is_written() -> None:
    _, (up, _), shell, breaking = blocks()
    typed(up)
    for line in shell:
        in_lab(line)
    until("the run trains", lambda: "step" in in_lab("cat slurm-*.out"))
    for line in breaking[:2]:  # a rank, then a node
        before = story().count("ranks run again on")
        typed(line)
        until("it goes on", lambda before=before: story().count("ranks run again on") > before)
    for line in breaking[2:-1]:
        typed(line)
    assert breaking[-1].endswith("lab down")


def story() -> str:
    return typed("scripts/unicronctl lab exec -- unicronctl why 1")
