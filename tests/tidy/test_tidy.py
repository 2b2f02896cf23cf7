"""The repository keeps its own rules: sizes, names, docstrings, pictures in docstrings, tables."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import tomllib

from unicrond import errors

ROOT = Path(__file__).resolve().parents[2]
NOT_DISTRIBUTED = {"bench", "demo", "tests"}
MOST_LINES_OF_A_FILE = 500
MOST_LINES_OF_A_FUNCTION = 60
NAMELESS = {"utils", "helpers", "types", "manager", "common", "misc"}
TEXTS = {".py", ".md", ".toml", ".service", ""}
# Paths are those of a developer's own machine.
UNWANTED = re.compile(r"/work/|/opt/wheels|TODO|FIXME|XXX:|<<<<<<< ")


def _tree() -> Iterator[Path]:
    """Files of the repository."""
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"],
        cwd=ROOT, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip(f"not a git checkout: {listed.stderr.strip()}")
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.is_file():
            yield path


@cache
def tree() -> tuple[Path, ...]:
    return tuple(_tree())


def modules() -> list[Path]:
    return [path for path in tree() if path.suffix == ".py"]


@cache
def parsed() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in modules()}


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _lines(path: Path) -> int:
    return path.read_text().count("\n")


def test_pyproject_lists_every_package_and_no_other() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = (path.parent.relative_to(ROOT) for path in modules() if path.name == "__init__.py")
    found = {".".join(folder.parts) for folder in folders if folder.parts[0] not in NOT_DISTRIBUTED}
    assert set(project["tool"]["setuptools"]["packages"]) == found


def test_every_module_says_what_lives_there() -> None:
    assert [
        _name(path)
        for path, module in parsed().items()
        if not ast.get_docstring(module) and module.body
    ] == []


def test_no_file_is_long() -> None:
    long = {_name(path): _lines(path) for path in modules() if _lines(path) > MOST_LINES_OF_A_FILE}
    assert long == {}


def test_no_function_is_long() -> None:
    functions = (
        (f"{_name(path)}:{node.name}", (node.end_lineno or 0) - node.lineno + 1)
        for path, module in parsed().items()
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    assert {name: size for name, size in functions if size > MOST_LINES_OF_A_FUNCTION} == {}


def test_every_module_has_a_name_that_says_something() -> None:
    assert [_name(path) for path in modules() if path.stem in NAMELESS] == []


def test_nothing_unfinished_and_nothing_of_a_single_machine_is_left_in_the_text() -> None:
    texts = (path for path in tree() if path.suffix in TEXTS and path != Path(__file__))
    found = [
        f"{_name(path)}:{number}: {line.strip()[:80]}"
        for path in texts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if UNWANTED.search(line)
    ]
    assert found == []


def _rows_of_architecture() -> list[str]:
    rows = re.findall(r"(?m)^\| (`.*?) \|", (ROOT / "ARCHITECTURE.md").read_text())
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_the_table_of_architecture_names_what_exists_and_all_of_it() -> None:
    named = _rows_of_architecture()
    assert [name for name in named if not (ROOT / name).exists()] == []
    top = {path.relative_to(ROOT).parts[0] for path in tree() if path.parent != ROOT}
    missing = {name for name in top if not name.startswith(".")} - {n.split("/")[0] for n in named}
    assert missing == set()


def test_the_table_of_architecture_names_every_part_of_the_daemon() -> None:
    named = {name.rstrip("/") for name in _rows_of_architecture()}
    parts = {_name(path.parent) for path in modules() if path.match("unicrond/*/__init__.py")}
    assert parts - named == set()


def test_the_picture_of_the_errors_is_true() -> None:
    drawn = re.findall(r"(?m)^([│ ├└─]*)(\w+Error|[A-Z][a-z]+\w*)", errors.__doc__ or "")
    names = {name: len(stem) // 4 for stem, name in drawn if hasattr(errors, name)}
    classes = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.UnicronError)
    }
    depths = {
        name: len([base for base in kind.__mro__ if issubclass(base, errors.UnicronError)]) - 1
        for name, kind in classes.items()
    }
    assert names == depths


def test_every_script_can_be_run() -> None:
    scripts = [path for path in tree() if path.parent.name in {"scripts", ".ci"}]
    assert scripts
    assert [_name(path) for path in scripts if not path.stat().st_mode & 0o100] == []
