"""A backup brings everything back, into any kind of database; a damaged one brings nothing."""

from __future__ import annotations

import gzip
import json
import stat
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from db.backup import backup, restore
from db.store import open_store
from tests.contract.databases import DATABASES, emptied
from tests.contract.test_store_contract import (
    ALLOCATION,
    DECISION,
    DRAIN,
    INCIDENT,
    RUN,
    STOP,
    snapshot,
)
from unicrond.errors import BadInput
from unicrond.model.decision import Mode
from unicrond.ports import Changes, JournalEntry

LINE = JournalEntry(10.0, "signal", "n2 is silent: \N{SNOWMAN}", 4711, 1, "n2", 3, {"x": 1})


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A backup of a small store on SQLite."""
    url, file = f"sqlite:///{tmp_path}/old.db", tmp_path / "unicron.backup"
    with closing(open_store(url)) as store:
        story = Changes(
            runs=(RUN,), incidents=(INCIDENT,), decisions=(DECISION,), intents=(STOP, DRAIN),
            journal=(LINE,), snapshot=snapshot(9.0, ALLOCATION), mode=Mode.ACTIVE, at=9.0,
        )  # fmt: skip
        store.save(story)
    assert backup(url, file, 11.0) > 6
    return file


@pytest.mark.parametrize("database", DATABASES)
def test_what_was_saved_comes_back_and_goes_on(saved: Path, database: str, tmp_path: Path) -> None:
    url = emptied(database, tmp_path)
    with closing(open_store(f"sqlite:///{tmp_path}/old.db")) as store:
        before = store.load()
    rows = restore(url, saved)
    with closing(open_store(url)) as store:
        assert store.load() == before
        store.save(Changes(journal=(replace(LINE, at=12.0),), at=12.0))  # a number of its own
    again = tmp_path / "again.backup"
    assert backup(url, again, 12.0) == rows + 1


def test_a_backup_is_for_its_owner_alone_and_says_what_it_is(saved: Path) -> None:
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    with gzip.open(saved, "rt") as lines:
        assert json.loads(next(lines))["at"] == 11.0


def test_a_database_that_holds_something_is_left_alone(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="in it already; restore into an empty one"):
        restore(f"sqlite:///{tmp_path}/old.db", saved)


def test_half_a_backup_brings_nothing(saved: Path, tmp_path: Path) -> None:
    url, lines = f"sqlite:///{tmp_path}/new.db", gzip.decompress(saved.read_bytes()).splitlines()
    saved.write_bytes(gzip.compress(b"\n".join(lines[:-1])))
    with pytest.raises(BadInput, match="is not whole"):
        restore(url, saved)
    with closing(open_store(url)) as store:
        assert store.load().runs == ()


@pytest.mark.parametrize(
    "content",
    [b"", b"no gzip", gzip.compress(b"{}"), gzip.compress(b"[1]")],
    ids=["empty", "no gzip", "no lines", "no header"],
)
def test_what_is_no_backup_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(content)
    with pytest.raises(BadInput, match="FILE"):
        restore(f"sqlite:///{tmp_path}/new.db", file)


def test_a_folder_that_is_not_there_is_named(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file or directory"):
        backup(f"sqlite:///{tmp_path}/old.db", tmp_path / "none" / "x", 1.0)
