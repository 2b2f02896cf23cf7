"""The start-up hook and the garbage collector, in real Python processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from unicron import page

ROOT = Path(__file__).parents[2]
TELLS = "import gc\nprint(__name__, gc.isenabled())\n"


@pytest.fixture
def rank(tmp_path: Path) -> dict[str, str]:
    """The environment of a rank with a torch that tells whether garbage is collected."""
    package = tmp_path / "lib/torch"
    (package / "_dynamo").mkdir(parents=True)
    (package / "__init__.py").write_text(TELLS)
    (package / "_dynamo/__init__.py").write_text(TELLS)
    page.make(tmp_path / "page")
    paths = f"{ROOT / 'unicron/hook'}:{tmp_path / 'lib'}"
    return {**os.environ, "PYTHONPATH": paths, "UNICRON_PAGE": str(tmp_path / "page")}


def said(environment: dict[str, str], script: str) -> str:
    command = [sys.executable, "-c", f"import gc\n{script}\nprint('after', gc.isenabled())"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def test_no_garbage_is_collected_while_torch_is_imported(rank: dict[str, str]) -> None:
    assert said(rank, "import torch, torch._dynamo") == (
        "torch False\ntorch._dynamo False\nafter True\n"
    )


def test_a_script_that_switched_collection_off_finds_it_off(rank: dict[str, str]) -> None:
    assert said(rank, "gc.disable(); import torch").endswith("after False\n")


def test_an_import_that_fails_switches_collection_on_again(
    rank: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "lib/torch/__init__.py").write_text("raise ImportError('no CUDA')")
    script = "try:\n    import torch\nexcept ImportError as error:\n    print(error)"
    assert said(rank, script) == "no CUDA\nafter True\n"


def test_nothing_of_it_outside_a_run(rank: dict[str, str]) -> None:
    rank.pop("UNICRON_PAGE")
    assert said(rank, "import torch") == "torch True\nafter True\n"
