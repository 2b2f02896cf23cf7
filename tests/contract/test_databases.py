"""What has to hold on every database: its tables, its migrations, what the API reads from it."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, event, inspect, make_url, text

from db import engine as engines
from db import migrate, schema
from db.engine import reading_engine, translated_errors, writing_engine
from db.queries import Queries
from db.store import SqlStore, open_store
from tests.contract.databases import DATABASES, SERVERS, emptied
from tests.contract.test_store_contract import (
    ALLOCATION,
    DECISION,
    INCIDENT,
    NODE,
    RUN,
    STOP,
    snapshot,
)
from unicrond.errors import BadInput, StoreUnavailable
from unicrond.model.decision import Mode
from unicrond.model.incident import IncidentState
from unicrond.model.run import RunState
from unicrond.ports import Changes, JournalEntry


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return emptied(request.param, tmp_path)


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = writing_engine(url)
    yield engine
    engine.dispose()


def test_migrations_make_the_tables_that_the_schema_describes(engine: Engine) -> None:
    migrate.upgrade(engine)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []


def test_every_revision_can_be_left_and_reached_again(engine: Engine) -> None:
    migrate.upgrade(engine)
    for revision in (*reversed(schema.REVISIONS[:-1]), "base"):
        migrate.downgrade(engine, revision)
        migrate.upgrade(engine)
        migrate.downgrade(engine, revision)
    migrate.upgrade(engine)
    assert migrate.current(engine) == schema.REVISIONS[-1]


@pytest.mark.parametrize("statement", [2, 9, 17, 26])
def test_an_upgrade_that_is_interrupted_can_be_run_again(
    url: str, engine: Engine, statement: int
) -> None:
    migrate.downgrade(engine, "base")
    with interrupted_at(engine, statement):
        migrate.upgrade(engine)
    open_store(url).close() if migrate.current(engine) == "" else migrate.upgrade(engine)
    assert set(inspect(engine).get_table_names()) == {*schema.metadata.tables, "alembic_version"}


@pytest.mark.parametrize("statement", [2, 9, 13])
def test_a_downgrade_that_is_interrupted_can_be_run_again(engine: Engine, statement: int) -> None:
    migrate.upgrade(engine)
    with interrupted_at(engine, statement):
        migrate.downgrade(engine, "base")
    migrate.downgrade(engine, "base")
    assert inspect(engine).get_table_names() == ["alembic_version"]


@contextmanager
def interrupted_at(engine: Engine, statement: int) -> Iterator[None]:
    """As by ^C before the n-th statement that changes tables."""
    left = statement

    def count(_connection: object, _cursor: object, words: str, *_: object) -> None:
        nonlocal left
        left -= words.lstrip().startswith(("CREATE", "DROP", "ALTER"))
        if left == 0:
            raise KeyboardInterrupt

    event.listen(engine, "before_cursor_execute", count)
    with pytest.raises(KeyboardInterrupt):
        yield
    event.remove(engine, "before_cursor_execute", count)


def test_runs_that_ended_before_the_upgrade_are_forgotten_in_their_time(
    url: str, engine: Engine
) -> None:
    over = replace(RUN, state=RunState.FAILED, ended_at=10.0)
    closed = replace(INCIDENT, state=IncidentState.CLOSED, closed_at=10.0)
    with closing(open_store(url)) as store:
        store.save(Changes(runs=(over, replace(RUN, run_id=4712)), incidents=(closed,)))
    migrate.downgrade(engine, "0003")
    migrate.upgrade(engine)
    with engine.begin() as connection:  # as if it had been interrupted just before its end
        connection.execute(text("UPDATE alembic_version SET version_num = '0003'"))
    migrate.upgrade(engine)
    with closing(open_store(url)) as store:
        assert store.forget(9.0) == 0
        assert store.forget(11.0) == 2
        assert [run.run_id for run in store.load().runs] == [4712]


def test_the_api_reads_what_the_loop_wrote(url: str) -> None:
    with closing(open_store(url)) as store, closing(Queries(url)) as queries:
        write(store)
        queries.check()
        assert queries.run(4711) == RUN
        assert queries.runs(live=True, user="alice").items == (RUN,)
        assert queries.incidents(open_=True).items == (INCIDENT,)
        assert [act.action for act in queries.acts(1)] == [STOP]
        assert [seen.managed for seen in queries.allocations().items] == [True]
        assert [seen.node.name for seen in queries.nodes().items] == ["n1"]
        assert [line.decision for line in queries.story_of_run(4711).items] == [DECISION]
        assert queries.meta("heartbeat") == {"at": 1.5}


def test_what_is_opened_for_reading_cannot_write(url: str) -> None:
    open_store(url).close()
    reader = reading_engine(url)
    with (
        pytest.raises(StoreUnavailable, match=r"(?i)read.?only"),
        translated_errors(reader),
        reader.begin() as connection,
    ):
        connection.execute(schema.meta.insert().values(key="x", value="1"))
    reader.dispose()


def write(store: SqlStore) -> None:
    store.put_meta("heartbeat", {"at": 1.0})
    store.put_meta("heartbeat", {"at": 1.5})
    told = JournalEntry(DECISION.at, "decision", DECISION.reason, 4711, 1)
    store.save(
        Changes(
            runs=(RUN,),
            incidents=(INCIDENT,),
            decisions=(DECISION,),
            intents=(STOP,),
            journal=(told,),
            snapshot=snapshot(9.0, ALLOCATION),
        )
    )


def test_names_that_differ_in_case_alone_are_two(url: str) -> None:
    upper = replace(NODE, name="N1")
    with closing(open_store(url)) as store, closing(Queries(url)) as queries:
        store.save(Changes(snapshot=snapshot(1.0, nodes=(NODE, upper))))
        assert {seen.node.name for seen in queries.nodes().items} == {"n1", "N1"}
        assert queries.node("N1") == upper


@pytest.mark.parametrize("server", SERVERS)
def test_a_lock_that_somebody_holds_is_not_waited_for_long(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = writing_engine(server)  # more patient: its own idle transaction is not given up either
    monkeypatch.setattr(engines, "STATEMENT_TIMEOUT_SECONDS", 0.5)
    url = emptied(server, tmp_path)
    with closing(open_store(url)) as store:
        store.put_meta("mode", "active")
        began = time.monotonic()
        with other.connect() as connection:
            connection.execute(schema.meta.update().values(value='"paused"'))
            with pytest.raises(StoreUnavailable, match=r"(?i)time ?out"):
                store.save(Changes(mode=Mode.OBSERVE))
            connection.rollback()
        assert time.monotonic() - began < 5
        store.save(Changes(mode=Mode.OBSERVE))
        assert store.load().mode is Mode.OBSERVE
    other.dispose()


@pytest.mark.parametrize("server", SERVERS)
def test_a_server_that_never_answers_is_unavailable(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "CONNECT_TIMEOUT_SECONDS", 2)
    monkeypatch.setattr(engines, "STATEMENT_TIMEOUT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        dialect = server.partition(":")[0]
        url = f"{dialect}://unicron@127.0.0.1:{mute.getsockname()[1]}/unicron"
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            open_store(url)
        assert time.monotonic() - began < 6


class Passage:
    """A TCP port that leads to a server's socket, until it is blocked."""

    def __init__(self, server: str) -> None:
        query = make_url(server).query
        folder, socket_file = query.get("host"), query.get("unix_socket")
        self._server = str(socket_file or f"{folder}/.s.PGSQL.5432")
        self.blocked = False
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, far = self._listener.accept()[0], socket.socket(socket.AF_UNIX)
                far.connect(self._server)
                self._threads.append(threading.Thread(target=self._carry, args=(near, far)))
                self._threads[-1].start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        with near, far, suppress(OSError):
            while True:
                ready = [] if self.blocked else select.select([near, far], [], [], 0.02)[0]
                for source in ready:
                    data = source.recv(65536)
                    if not data:
                        return
                    (far if source is near else near).sendall(data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)


@pytest.mark.parametrize("server", SERVERS)
def test_a_server_that_falls_silent_is_unavailable_until_it_speaks_again(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "STATEMENT_TIMEOUT_SECONDS", 0.5)
    through = make_url(emptied(server, tmp_path)).set(query={})
    with closing(Passage(server)) as passage:
        url = through.set(host="127.0.0.1", port=passage.port, username=through.username or "root")
        with closing(open_store(url.render_as_string(hide_password=False))) as store:
            passage.blocked = True
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                store.save(Changes(mode=Mode.OBSERVE))
            assert time.monotonic() - began < 6
            passage.blocked = False
            store.save(Changes(mode=Mode.ACTIVE))
            assert store.load().mode is Mode.ACTIVE


@pytest.mark.parametrize("server", SERVERS)
def test_a_database_that_loses_letters_is_refused_with_the_right_statement(
    server: str, tmp_path: Path
) -> None:
    made = {
        "postgresql": "CREATE DATABASE poor TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'",
        "mariadb": "CREATE DATABASE poor CHARACTER SET latin1",
    }
    good = writing_engine(server)
    with good.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(made[good.dialect.name]))
    poor = good.url.set(database="poor").render_as_string(hide_password=False)
    try:
        with pytest.raises(BadInput, match="loses letters or their case: make it by `CREATE"):
            open_store(poor)
    finally:
        with good.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("DROP DATABASE poor"))
        good.dispose()


@pytest.mark.parametrize("server", SERVERS)
def test_a_server_is_found_by_the_short_name_of_its_kind(server: str) -> None:
    kind, _, rest = server.partition("+")
    short = f"{kind}:{rest.partition(':')[2]}"
    with closing(open_store(short)) as store:
        assert store.load().next_ordinal == 0
