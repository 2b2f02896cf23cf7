"""The manual pages say what the programs do, since the programs fill them."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from unicrond.agent.options import parser
from unicrond.config import keys

MAN = Path(__file__).parents[2] / "docs" / "man"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_man", MAN / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(generate: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("man")
    generate.main(folder)
    return {path.name: path for path in folder.iterdir()}


def words(page: Path) -> str:
    return page.read_text().replace("\\-", "-").replace("\\(dq", '"')


def test_there_is_a_page_for_each_program_and_the_configuration(pages: dict[str, Path]) -> None:
    assert set(pages) == {"unicronctl.1", "unicron-run.1", "unicrond.8", "unicron.toml.5"}
    assert not any(re.search(r"@[a-z]+@", page.read_text()) for page in pages.values())


def test_every_command_is_told_with_its_options(pages: dict[str, Path]) -> None:
    text = words(pages["unicronctl.1"])
    for command in ("status", "nodes", "incident refute", "db upgrade", "doctor", "top", "why"):
        assert f'"unicronctl {command} ' in text
    assert "--nodelist" in text and "--dry-run" in text


def test_every_key_is_told_with_its_default(pages: dict[str, Path]) -> None:
    text = words(pages["unicron.toml.5"])
    assert all(f'"{".".join(key)}"' in text for key in keys())


def test_every_option_of_the_wrapper_stands_in_its_usage(
    generate: ModuleType, pages: dict[str, Path]
) -> None:
    text = words(pages["unicron-run.1"])
    for action in parser()._actions:
        assert action.option_strings[0] in generate.usage()
        assert action.option_strings[0] in text


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff here")
def test_groff_finds_no_fault_in_the_pages(pages: dict[str, Path]) -> None:
    command = ["groff", "-man", "-ww", "-z", "-Tutf8", *map(str, pages.values())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
