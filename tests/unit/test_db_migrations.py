"""Tables are created, brought up to date, and left alone when they are not for this program."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, inspect, text

from db import migrate, schema
from db.engine import writing_engine
from db.store import SqlStore, open_store
from unicrond.errors import BadInput, StoreUnavailable
from unicrond.model.decision import Mode
from unicrond.ports import Changes

MIGRATIONS = Path(migrate.__file__).parent / "migrations"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/unicron.db"


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = writing_engine(url)
    yield engine
    engine.dispose()


def tables(engine: Engine) -> set[str]:
    with engine.connect() as connection:
        return set(inspect(connection).get_table_names())


def set_revision(engine: Engine, revision: str) -> None:
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :r"), {"r": revision})


def test_the_program_knows_every_revision_there_is() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    script = ScriptDirectory.from_config(config)
    walked = [revision.revision for revision in script.walk_revisions()]
    assert tuple(reversed(walked)) == schema.REVISIONS


def test_an_empty_database_is_filled_and_emptied_again(engine: Engine) -> None:
    assert migrate.current(engine) == ""
    assert migrate.upgrade(engine) == ("", schema.REVISIONS[-1])
    assert tables(engine) == {*schema.metadata.tables, "alembic_version"}
    migrate.downgrade(engine, "base")
    assert tables(engine) == {"alembic_version"}
    assert migrate.current(engine) == ""
    migrate.upgrade(engine)
    assert migrate.current(engine) == schema.REVISIONS[-1]


def test_an_upgrade_of_what_is_up_to_date_changes_nothing(url: str, engine: Engine) -> None:
    store = open_store(url)
    store.save(Changes(mode=Mode.ACTIVE))
    assert migrate.upgrade(engine) == (schema.REVISIONS[-1], schema.REVISIONS[-1])
    assert store.load().mode is Mode.ACTIVE
    store.close()


def test_a_filled_database_can_be_emptied_for_good(url: str, engine: Engine) -> None:
    store = open_store(url)
    store.save(Changes(mode=Mode.ACTIVE))
    store.close()
    migrate.downgrade(engine, "base")
    migrate.upgrade(engine)
    assert SqlStore(engine).load().mode is None


def test_a_database_of_a_newer_program_is_refused(url: str, engine: Engine) -> None:
    migrate.upgrade(engine)
    set_revision(engine, "0999")
    for refuse in (lambda: open_store(url), lambda: migrate.upgrade(engine)):
        with pytest.raises(BadInput, match=r"is at revision 0999, made by a newer unicrond"):
            refuse()
    assert migrate.current(engine) == "0999"


def test_an_older_database_is_refused_until_it_was_upgraded(url: str, engine: Engine) -> None:
    store = open_store(url)
    store.save(Changes(mode=Mode.ACTIVE))
    store.close()
    for older in schema.REVISIONS[-2::-1]:
        migrate.downgrade(engine, older)
        with pytest.raises(BadInput, match=rf"at revision {older} .* run `unicronctl db upgrade`"):
            migrate.ensure_ready(engine)
        assert migrate.upgrade(engine) == (older, schema.REVISIONS[-1])
        assert SqlStore(engine).load().mode is Mode.ACTIVE


def test_somebody_elses_database_is_refused(url: str, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE customers (id INTEGER)"))
    with pytest.raises(BadInput, match="tables that are not unicrond's"):
        open_store(url)
    assert tables(engine) == {"customers"}


def test_a_migration_that_fails_leaves_the_database_as_it_was(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE VIEW journal AS SELECT 1 AS name"))
    with pytest.raises(StoreUnavailable, match="views may not be indexed"):
        migrate.upgrade(engine)
    assert tables(engine) == set()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("unicron.db", "this is not a URL; write for example sqlite:////var"),
        ("sqlite://", "a database in memory would forget everything"),
        ("sqlite:///:memory:", "a database in memory would forget everything"),
        ("oracle://host/x", "oracle is not supported; use one of sqlite, postgresql"),
        ("mysql+nosuch://host/x", "the driver for mysql\\+nosuch is not installed"),
    ],
)
def test_a_url_that_is_no_use_is_refused(url: str, words: str) -> None:
    with pytest.raises(BadInput, match=f"database_url: {words}"):
        open_store(url)


def test_a_file_that_cannot_be_opened_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="unable to open database file"):
        open_store(f"sqlite:///{tmp_path}/absent/unicron.db")


def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("words " * 1000)
    with pytest.raises(StoreUnavailable, match="file is not a database"):
        open_store(f"sqlite:///{tmp_path}/text")
