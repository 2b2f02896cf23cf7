"""What the lease promises, over MemoryLeases and every database; and saves of a leader that was."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from db import engine as engines
from db import lease, migrate
from db.engine import writing_engine
from db.lease import Leases, SqlLeases, open_leases
from db.memory import MemoryLeases
from db.queries import Queries
from db.store import open_store
from tests.contract.databases import DATABASES, SERVERS, emptied
from unicrond.core.leader import NOBODY, Candidate, Row
from unicrond.errors import BadInput, LeaseLost, StoreUnavailable
from unicrond.leading import Shared
from unicrond.model.decision import Mode
from unicrond.ports import Changes

ONE = Row(1, "head1-7-ab", "head1", 7.5)
TWO = Row(2, "head2-9-cd", "head2", 6.0)


@pytest.fixture(params=["memory", *DATABASES])
def leases(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Leases]:
    if request.param == "memory":
        yield MemoryLeases()
        return
    engine = writing_engine(emptied(request.param, tmp_path))
    migrate.upgrade(engine)
    with closing(SqlLeases(engine)) as found:
        yield found


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return emptied(request.param, tmp_path)


def test_whoever_is_first_has_it_and_the_second_does_not(leases: Leases) -> None:
    assert leases.read() is None
    assert leases.take(None, ONE)
    assert not leases.take(None, replace(TWO, term=1))
    assert leases.read() == ONE


def test_a_renewal_shows_and_its_age_is_told(leases: Leases) -> None:
    leases.take(None, ONE)
    assert leases.renew(ONE) and leases.renew(ONE)
    found = leases.read()
    assert found == replace(ONE, renewals=2)
    assert found is not None and 0 <= found.age_seconds < 2


def test_it_is_taken_only_as_it_was_seen(leases: Leases) -> None:
    leases.take(None, ONE)
    seen = leases.read()
    leases.renew(ONE)
    assert not leases.take(seen, TWO)
    assert leases.take(leases.read(), TWO)
    assert leases.read() == TWO


def test_a_holder_that_was_can_neither_renew_nor_give_back(leases: Leases) -> None:
    leases.take(None, ONE)
    leases.take(leases.read(), TWO)
    assert not leases.renew(ONE)
    leases.release(ONE)
    assert leases.read() == TWO


def test_what_was_given_back_is_nobodys(leases: Leases) -> None:
    leases.take(None, ONE)
    leases.release(ONE)
    assert leases.read() == replace(ONE, holder=NOBODY)
    assert not leases.renew(ONE)
    assert leases.take(leases.read(), TWO)


def test_whoever_led_saves_nothing_more(url: str) -> None:
    with closing(open_store(url)) as old, closing(open_store(url)) as new:
        found = SqlLeases(writing_engine(url))
        found.take(None, ONE)
        old.fence(ONE)
        old.save(Changes(mode=Mode.ACTIVE))
        old.put_meta("heartbeat", 1)
        found.take(found.read(), TWO)
        new.fence(TWO)
        for write in (
            lambda: old.save(Changes(mode=Mode.PAUSED)),
            lambda: old.put_meta("heartbeat", 2),
            lambda: old.forget(1e9),
        ):
            with pytest.raises(LeaseLost, match="took over from term 1"):
                write()
        assert new.load().mode is Mode.ACTIVE
        new.save(Changes(mode=Mode.OBSERVE))
        found.close()


def test_the_api_reads_who_leads(url: str) -> None:
    with closing(open_store(url)), closing(Queries(url)) as queries:
        assert queries.lease() is None
        found = SqlLeases(writing_engine(url))
        found.take(None, ONE)
        assert queries.lease() == ONE
        found.close()


def test_sqlite_says_that_it_cannot(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="leader_lease_seconds: SQLite is a file of one host"):
        open_leases(f"sqlite:///{tmp_path}/unicron.db", 4.0)


@pytest.mark.parametrize("server", SERVERS)
def test_it_is_not_taken_in_the_middle_of_a_save(server: str, tmp_path: Path) -> None:
    """Else a successor would load what was there before the save, and the save would stand."""
    url = emptied(server, tmp_path)
    with closing(open_store(url)), closing(open_leases(url, 4.0)) as found:
        found.take(None, ONE)
        saving = writing_engine(url)
        with saving.connect() as connection:
            lease.check_held(connection, ONE)
            taking = threading.Thread(target=found.take, args=(found.read(), TWO))
            taking.start()
            time.sleep(0.3)
            assert found.read() == ONE
            connection.commit()
        taking.join()
        assert found.read() == TWO
        saving.dispose()


@pytest.mark.parametrize("server", SERVERS)
def test_a_leader_that_is_stopped_in_the_middle_of_a_save_holds_nobody_up_for_long(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "STATEMENT_TIMEOUT_SECONDS", 1.0)
    url = emptied(server, tmp_path)
    with closing(open_store(url)), closing(open_leases(url, 8.0)) as found:
        found.take(None, ONE)
        stopped = writing_engine(url)
        connection = stopped.connect()
        connection.execute(text("DELETE FROM meta"))
        lease.check_held(connection, ONE)  # and then no commit comes
        began = time.monotonic()
        assert eventually(lambda: found.take(found.read(), TWO))
        assert time.monotonic() - began < 4
        with pytest.raises(Exception):  # noqa: B017 - each driver's own
            connection.commit()
        connection.invalidate()
        stopped.dispose()


def eventually(attempt: Callable[[], bool]) -> bool:
    for _ in range(10):
        try:
            return attempt()
        except StoreUnavailable:
            pass
    return False


@pytest.mark.parametrize("server", SERVERS)
def test_of_two_that_stand_by_one_leads_and_the_other_once_it_ended(
    server: str, tmp_path: Path
) -> None:
    url = emptied(server, tmp_path)
    open_store(url).close()

    async def story() -> None:
        found = [open_leases(url, 1.0) for _ in "12"]
        both = [Shared(found[i], Candidate(f"head{i}-1-a", f"head{i}", 1.0, 0.5)) for i in range(2)]
        tasks = [asyncio.create_task(one.stand_by()) for one in both]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=5)
        first = 0 if tasks[0].done() else 1
        leader, other = both[first], both[1 - first]
        keeping = asyncio.create_task(leader.keep())
        await asyncio.sleep(2.5)  # longer than a standby waits for one that is dead
        assert not tasks[1 - first].done()
        leader.before_act()
        assert leader.may_act() and not other.may_act()
        keeping.cancel()
        ended = time.monotonic()
        row = await asyncio.wait_for(tasks[1 - first], 5)
        assert 1.0 < time.monotonic() - ended < 4
        assert row.term == 2
        assert not leader.may_act() and other.may_act()
        with pytest.raises(LeaseLost):
            leader.before_act()
        for one in found:
            one.close()

    asyncio.run(story())
