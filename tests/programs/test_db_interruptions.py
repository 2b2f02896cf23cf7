"""Killed, full, locked, gone: a save is there or it is not, never half."""

from __future__ import annotations

import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from db import engine
from db.store import SqlStore, open_store
from unicrond.errors import StoreUnavailable
from unicrond.model.decision import Mode
from unicrond.ports import Changes, JournalEntry

ROOT = Path(__file__).parents[2]

KILLED_AT = """
import dataclasses, os, signal, sys
from sqlalchemy import event
from db import engine
from db.store import open_store
from tests.contract.test_store_contract import ALLOCATION, DECISION, INCIDENT, RUN, STOP, snapshot
from unicrond.model.decision import Mode
from unicrond.ports import Changes, JournalEntry

url, point = sys.argv[1], int(sys.argv[2])
store = open_store(url)
statements = 0

def count(*_):
    global statements
    statements += 1
    if statements == point:
        os.kill(os.getpid(), signal.SIGKILL)

def before_commit(_):
    print(statements, flush=True)
    if point == 0:
        os.kill(os.getpid(), signal.SIGKILL)

event.listen(store._engine, "before_cursor_execute", count)
event.listen(store._engine, "commit", before_commit)
store.save(Changes(
    runs=(RUN,), incidents=(INCIDENT,), decisions=(DECISION,), intents=(STOP,),
    journal=(JournalEntry(1.0, "note", "x" * 100_000),), snapshot=snapshot(1.0, ALLOCATION),
    mode=Mode.ACTIVE,
))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/unicron.db"


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    with closing(open_store(url)) as store:
        yield store


def save_killed_at(url: str, point: int) -> str:
    """0: just before the commit; n: before statement n; beyond the last: just after the save."""
    child = subprocess.run(
        [sys.executable, "-c", KILLED_AT, url, str(point)],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert child.returncode == -9, child.stderr
    return child.stdout


def test_a_daemon_killed_in_the_middle_of_a_save_saved_nothing(url: str) -> None:
    open_store(url).close()
    statements = int(save_killed_at(url, 0))
    assert statements > 10
    for point in (1, 2, statements // 2, statements):
        save_killed_at(url, point)
    with closing(open_store(url)) as store:
        saved = store.load()
    assert (saved.runs, saved.incidents, saved.unfinished, saved.mode) == ((), (), (), None)
    assert rows(url) == {"decisions": 0, "journal": 0, "allocations": 0, "nodes": 0}


def test_a_daemon_killed_right_after_a_save_saved_everything(url: str) -> None:
    save_killed_at(url, 10_000)
    with closing(open_store(url)) as store:
        saved = store.load()
    assert len(saved.runs) == len(saved.incidents) == len(saved.unfinished) == 1
    assert saved.mode is Mode.ACTIVE
    assert rows(url) == {"decisions": 1, "journal": 1, "allocations": 1, "nodes": 1}


def rows(url: str) -> dict[str, int]:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
        return {
            table: database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("decisions", "journal", "allocations", "nodes")
        }


@contextmanager
def no_file_grows_beyond(size: int) -> Iterator[None]:
    """A full disk, without one: the kernel refuses to make any file longer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_on_a_full_disk_nothing_is_saved_and_later_all_is_well(
    store: SqlStore, tmp_path: Path
) -> None:
    store.save(Changes(mode=Mode.OBSERVE))
    written = (tmp_path / "unicron.db-wal").stat().st_size
    big = JournalEntry(1.0, "note", "x" * 1_000_000)
    with no_file_grows_beyond(written), pytest.raises(StoreUnavailable, match="disk"):
        store.save(Changes(mode=Mode.ACTIVE, journal=(big,)))
    assert store.load().mode is Mode.OBSERVE
    store.save(Changes(mode=Mode.ACTIVE, journal=(big,)))
    assert store.load().mode is Mode.ACTIVE
    assert rows(f"sqlite:///{tmp_path}/unicron.db")["journal"] == 1


def test_a_database_that_somebody_else_holds_is_unavailable(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_SECONDS", 0.1)
    store = open_store(url)
    with closing(sqlite3.connect(tmp_path / "unicron.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="database is locked"):
            store.save(Changes(mode=Mode.ACTIVE))
        other.execute("ROLLBACK")
    store.save(Changes(mode=Mode.PAUSED))
    assert store.load().mode is Mode.PAUSED
    store.close()


def test_a_database_that_was_removed_is_unavailable(store: SqlStore, tmp_path: Path) -> None:
    store.save(Changes(mode=Mode.ACTIVE))
    (tmp_path / "unicron.db").unlink()
    for use in (lambda: store.save(Changes(mode=Mode.PAUSED)), store.load):
        with pytest.raises(StoreUnavailable, match="removed or replaced"):
            use()
