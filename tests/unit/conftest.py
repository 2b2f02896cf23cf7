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

from apiworld import NOW, Asker, Client, NotingControl


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


@pytest.fixture
def control() -> NotingControl:
    return NotingControl()


@pytest.fixture
def client(url: str, store: SqlStore, control: NotingControl) -> Iterator[Client]:
    """Given a uid, asks the API as that user over the Unix socket; else as nobody, over TCP."""
    from unicrond.api.app import create_app  # slow to import, and few need it

    with closing(Queries(url)) as queries:
        app = create_app(queries, control, cluster="alpha", admins=["nobody"], now=lambda: NOW)
        yield lambda uid=None: Asker(app, uid)
