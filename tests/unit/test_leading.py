"""What people see of several unicronds, and what is done before acts and when the lease is lost."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from apiworld import NOW, Asker, NotingControl

from db.engine import writing_engine
from db.lease import SqlLeases
from db.memory import MemoryLeases
from db.queries import Queries
from db.store import SqlStore
from unicrond.api.app import create_app
from unicrond.api.control import ControlClient, ControlServer
from unicrond.core.leader import Candidate, Row
from unicrond.ctl.status import summary
from unicrond.daemon import main
from unicrond.errors import LeaseLost, SlurmUnavailable, StoreUnavailable, Unavailable
from unicrond.leading import Shared
from unicrond.model.decision import Mode
from unicrond.slurm.command import SlurmCommand

ROW = Row(3, "head1-7-ab", "head1", 8.0)


@dataclass
class FailingLeases(MemoryLeases):
    """Answers after `fault` is gone."""

    fault: str = ""
    took_seconds: float = 0.0
    now: list[float] = field(default_factory=lambda: [100.0])

    def __post_init__(self) -> None:
        super().__init__()

    def renew(self, mine: Row) -> bool:
        self.now[0] += self.took_seconds
        if self.fault:
            raise StoreUnavailable(self.fault)
        return super().renew(mine)


def leading(leases: FailingLeases) -> Shared:
    shared = Shared(leases, Candidate("me", "head1", 4.0, 3.0), lambda: leases.now[0])
    asyncio.run(shared.stand_by())
    return shared


def test_before_an_act_the_database_is_asked() -> None:
    leases = FailingLeases()
    shared = leading(leases)
    shared.before_act()
    assert leases.read() == Row(1, "me", "head1", 7.5, renewals=1)
    leases.fault = "gone"
    with pytest.raises(StoreUnavailable, match="gone"):
        shared.before_act()
    assert shared.may_act(), "orders may still go out"
    leases.now[0] += 4.0
    assert not shared.may_act()
    leases.fault = ""
    shared.before_act()
    assert shared.may_act()


def test_a_renewal_that_took_longer_than_the_lease_allows_nothing() -> None:
    leases = FailingLeases(took_seconds=4.5)
    shared = leading(leases)
    with pytest.raises(StoreUnavailable, match="ran out while it was renewed"):
        shared.before_act()


def test_whoever_lost_the_lease_is_told_by_an_act_and_by_its_keeper() -> None:
    leases = FailingLeases()
    shared = leading(leases)
    leases.take(leases.read(), ROW)
    with pytest.raises(LeaseLost, match="took over from term 1"):
        shared.before_act()
    assert not shared.may_act()
    with pytest.raises(LeaseLost):
        asyncio.run(shared.keep())
    shared.release()
    assert leases.read() == ROW


def test_health_tells_on_each_host_who_leads(store: SqlStore, url: str) -> None:
    with closing(SqlLeases(writing_engine(url))) as leases, closing(Queries(url)) as queries:
        leases.take(None, ROW)
        for holder in ("head1-7-ab", "head2-9-cd"):
            app = create_app(queries, NotingControl(), now=lambda: NOW, holder=holder)
            health = Asker(app, None).get("/v1/health").json()
            assert 0 <= health["leader"].pop("lease_age_seconds") < 5
            here = holder == ROW.holder
            assert health["leader"] == {"host": "head1", "term": 3, "here": here}
        assert "unicron_leader_term 3.0" in Asker(app, None).get("/metrics").text
        leases.release(ROW)
        health = Asker(app, None).get("/v1/health").json()
        assert (health["leader"]["host"], health["leader"]["here"]) == (None, False)
        words = [str(line) for line in summary(health, [], [])]
        assert any("nobody: the last one gave its lease back" in line for line in words)


def test_a_standby_refuses_commands_and_says_who_leads(tmp_path: Path) -> None:
    async def story() -> None:
        path = str(tmp_path / "control.sock")
        why = "this unicrond stands by: head1 leads (term 3), give commands there"
        server = ControlServer(path, lambda *_: True, time.time, refuse=lambda: why)
        await server.start()
        with pytest.raises(Unavailable, match=r"head1 leads \(term 3\), give commands there"):
            await asyncio.to_thread(
                ControlClient(path).set_mode, Mode.PAUSED, None, "root", "a test"
            )
        await server.stop()

    asyncio.run(story())


def test_a_command_that_changes_something_ends_although_nobody_waits_for_it() -> None:
    began = time.monotonic()
    with pytest.raises(SlurmUnavailable, match=r"sleep 60: no answer within 0\.2 s"):
        SlurmCommand(timeout_seconds=0.2).act("sleep", "60")
    assert time.monotonic() - began < 1, "by itself, before this process would end it"
    with pytest.raises(SlurmUnavailable, match="no-such-scontrol"):
        SlurmCommand().act("no-such-scontrol")


def test_sqlite_cannot_be_shared_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "unicron.toml"
    url = f"sqlite:///{tmp_path}/unicron.db"
    config.write_text(f'leader_lease_seconds = 4\ndatabase_url = "{url}"\n')
    assert main(["--config", str(config)]) == 2
    said = capsys.readouterr().err
    assert "leader_lease_seconds: SQLite is a file of one host" in said
    assert "PostgreSQL or MariaDB" in said
    config.write_text("leader_lease_seconds = 1\n")
    assert main(["--config", str(config)]) == 2
    assert "write 2 or more, or 0 for one unicrond alone" in capsys.readouterr().err
