"""unicrond starts with its own packages or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def start(*before: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, [*before, CHECKOUT]))
    return subprocess.run(
        [sys.executable, "-m", "unicrond", "--version"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
    )


def test_a_package_of_the_same_name_is_told_before_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "db/__init__.py").write_text("raise SystemExit('imported')")
    done = start(tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"unicrond: `db` is taken from {tmp_path}/db, and should be ")


def test_a_module_in_the_place_of_a_package_is_told_too(tmp_path: Path) -> None:
    (tmp_path / "planner.py").write_text("")
    assert "`planner` is not a package" in start(tmp_path).stderr


def test_with_its_own_it_starts() -> None:
    done = start()
    assert (done.returncode, done.stderr) == (0, "")
