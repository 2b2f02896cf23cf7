"""Puts linkworld.py within reach of the tests of the link; gives the others a store to read."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from db.queries import Queries
from db.store import SqlStore, open_store

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/unicron.db"


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once: to create the tables takes longer than most tests."""
    path = tmp_path_factory.mktemp("template") / "unicron.db"
    open_store(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def store(url: str, empty_database: Path) -> Iterator[SqlStore]:
    shutil.copy(empty_database, url.removeprefix("sqlite:///"))
    with closing(open_store(url)) as store:
        yield store


@pytest.fixture
def queries(url: str, store: SqlStore) -> Iterator[Queries]:
    with closing(Queries(url)) as queries:
        yield queries
