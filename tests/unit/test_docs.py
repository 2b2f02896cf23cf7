"""What the documents tell people to type is understood, and what they name is there."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
import typer.main
from docsworld import DOCUMENTS, ROOT, reading, shown, wrapped

from detectors.trust import catalogue
from unicrond.agent.options import parse
from unicrond.ctl.main import app

CTL = list(shown("unicronctl"))
RUNS = list(wrapped())


@cache
def root() -> Any:
    return typer.main.get_command(app)


def understood(words: list[str]) -> None:
    """Parsed down to the last option, not carried out."""
    command = root()
    names = ["unicronctl"]
    while words and words[0] in getattr(command, "commands", {}):
        names, command, words = [*names, words[0]], command.commands[words[0]], words[1:]
    assert not hasattr(command, "commands") or not words, f"no command {' '.join([*names, *words])}"
    command.make_context(
        " ".join(names),
        list(words) or ["--help"] * hasattr(command, "commands"),
        resilient_parsing=not words,
    )


@pytest.mark.parametrize(("place", "words"), CTL, ids=[place for place, _ in CTL])
def test_every_command_that_is_shown_is_understood(place: str, words: list[str]) -> None:
    understood(words)


@pytest.mark.parametrize(("place", "words"), RUNS, ids=[place for place, _ in RUNS])
def test_every_run_that_is_shown_is_one(place: str, words: list[str]) -> None:
    assert parse(words, nodes=4, job_name="train").program


def test_documents_show_commands_at_all() -> None:
    assert len(CTL) > 20 and len(RUNS) > 2 and len(reading()) > 5


def test_every_kind_of_failure_is_in_the_catalogue_and_no_other() -> None:
    rows = re.findall(
        r"^\| `([^`]+)` \|", (ROOT / "docs" / "failures.md").read_text(), re.MULTILINE
    )
    assert set(rows) == {str(kind) for kind in catalogue().values()}
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_what_a_document_links_to_is_there(document: Any) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text())
    missing = [target for target in targets if not (document.parent / target).exists()]
    assert missing == []
