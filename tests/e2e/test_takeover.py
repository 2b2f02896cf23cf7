"""Two unicronds over one MariaDB, on one head with sockets and ports of their own: one leads, the
other takes over when the first is killed, stopped for a while, or told to end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from stage import AGENT_CONF, LOCKSTEP, UNICRON_TOML, Stage, until

from lab import processes, services

pytestmark = pytest.mark.slurm

FIRST, SECOND = "unicron", "second"  # names of their configurations
SQL = """CREATE OR REPLACE DATABASE unicron CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
CREATE OR REPLACE USER unicron@localhost;
GRANT ALL ON unicron.* TO unicron@localhost;
"""
URL = "mariadb://unicron@/unicron?unix_socket=/run/mysqld/mysqld.sock"
SHARED = f'leader_lease_seconds = 4\nslurm_timeout_seconds = 3\ndatabase_url = "{URL}"\n'
SECOND_TOML = """api_socket = "/run/unicron/second.sock"
control_socket = "/run/unicron/second-control.sock"
api_listen = "127.0.0.1:7728"
"""
WITHIN_SECONDS = 10.0  # lease 4 s, Slurm's commands 3 s, and room for a busy machine


@dataclass
class Pair:
    stage: Stage

    def pid(self, name: str) -> int | None:
        """Of the daemon with that configuration."""
        config = f"/etc/unicron/{name}.toml"
        found = [p.pid for p in self.inside() if {"unicrond.daemon", config} <= {*p.arguments}]
        return found[0] if found else None

    def inside(self) -> list[processes.Process]:
        head = processes.head_init(self.stage.name)
        assert head is not None
        return processes.living_in(head)

    def send(self, name: str, number: signal.Signals) -> float:
        pid = self.pid(name)
        assert pid is not None
        os.kill(pid, number)
        return time.time()

    def health(self, name: str) -> dict[str, Any]:
        """By the API of that one."""
        self.ask(name)
        return self.stage.health()

    def ask(self, name: str) -> None:
        """From now on whatever the stage asks."""
        self.stage.socket = f"run/unicron/{'unicrond' if name == FIRST else name}.sock"

    def leads(self, name: str) -> int:
        """The term in which it does, 0: it does not."""
        leader = self.health(name).get("leader") or {}
        return leader["term"] if leader.get("here") else 0

    def log(self, name: str) -> str:
        file = "unicrond" if name == FIRST else name
        return self.stage.lab.paths.inside(f"/var/log/unicron/{file}.log").read_text()

    def followed(self, since: float) -> float:
        """Seconds until the second leads; and works, which is printed."""
        until("the second leads", lambda: "leads now term=2" in self.log(SECOND))
        took = time.time() - since
        until("its loop runs", lambda: "unicrond started version" in self.log(SECOND))
        print(f"it leads after {took:.1f} s, its loop runs after {time.time() - since:.1f} s")
        until("its API says so", lambda: self.leads(SECOND) == 2)
        return took

    def end_second(self) -> None:
        ours = [p for p in self.inside() if any("second.toml" in word for word in p.arguments)]
        for process in sorted(ours, key=lambda p: "while" not in " ".join(p.arguments)):
            processes.send_signal(process, signal.SIGCONT)
            processes.send_signal(process, signal.SIGKILL)


@pytest.fixture
def pair(stage: Stage) -> Iterator[Pair]:
    """The first leads, the second stands by."""
    stage.stop_unicrond()
    etc = stage.lab.paths.inside("/etc/unicron")
    toml = "\n".join(li for li in UNICRON_TOML.splitlines() if not li.startswith("database_url"))
    (etc / "unicron.toml").write_text(SHARED + toml)
    (etc / "second.toml").write_text(SHARED + SECOND_TOML + toml.replace(":7717", ":7727"))
    (etc / "agent.conf").write_text(AGENT_CONF.rstrip() + ", 10.77.0.254:7727\n")
    stage.lab.exec(["mariadb", "-S", "/run/mysqld/mysqld.sock"], text_in=SQL)
    stage.lab.start_unicrond()
    pair = Pair(stage)
    until("the first leads", lambda: pair.leads(FIRST))
    loop = services.UNICROND_LOOP.replace("unicron.toml", "second.toml")
    log = stage.lab.paths.inside("/var/log/unicron/second.log").open("w")
    second = subprocess.Popen(
        stage.lab.command(["/bin/sh", "-c", loop]), stdout=log, stderr=subprocess.STDOUT
    )
    until("the second stands by", lambda: "stands by: head leads" in pair.log(SECOND))
    yield pair
    pair.end_second()
    second.wait()
    log.close()
    pair.ask(FIRST)
    stage.stop_unicrond()
    (etc / "unicron.toml").write_text(UNICRON_TOML)
    stage.lab.start_unicrond()


def test_a_leader_that_is_killed_in_the_middle_of_a_heal_is_followed(pair: Pair) -> None:
    stage = pair.stage
    training = stage.training(LOCKSTEP, "--min-nodes=2")
    stage.lab.fault("cut-link", node="n3")
    training.until("the heal begins", lambda: training.run().get("healing") == "stop")
    killed = pair.send(FIRST, signal.SIGKILL)
    took = pair.followed(killed)
    assert took < WITHIN_SECONDS
    training.goes_on(generation=2)
    assert training.generations() == [1, 2]
    assert {s.node for s in training.of(2)} == {"n1", "n2"}
    assert training.heals()["state"] == "resolved"
    training.until("n3 is drained", lambda: stage.reason("n3").startswith("unicron: lost conn"))
    assert len(training.incidents()) == 1, "one fault, one incident"
    until("the first stands by", lambda: "stands by: head leads (term 2)" in pair.log(FIRST))


def test_a_leader_that_was_stopped_for_longer_than_its_lease_acts_no_more(pair: Pair) -> None:
    stage = pair.stage
    slurmctld = stage.lab.paths.inside("/var/log/slurm/slurmctld.log")
    before = len(slurmctld.read_text())
    training = stage.training(LOCKSTEP, "--min-nodes=2")
    stage.lab.fault("cut-link", node="n3")
    training.until("the heal begins", lambda: training.run().get("healing") == "stop")
    stopped = pair.send(FIRST, signal.SIGSTOP)
    old = pair.pid(FIRST)
    took = pair.followed(stopped)
    assert took < WITHIN_SECONDS
    pair.send(FIRST, signal.SIGCONT)
    until("the first ends", lambda: pair.pid(FIRST) not in (None, old))
    assert "took over from term 1" in pair.log(FIRST)
    training.goes_on(generation=2)
    training.until("n3 is drained", lambda: stage.reason("n3").startswith("unicron: lost conn"))
    assert training.heals()["state"] == "resolved"
    assert training.generations() == [1, 2]
    words = "update_node: node n3 reason set to: unicron: lost conn"
    assert slurmctld.read_text()[before:].count(words) == 1
    assert pair.leads(SECOND) == 2 and not pair.leads(FIRST)


def test_while_the_database_is_away_nobody_acts_and_then_one_of_them_leads(pair: Pair) -> None:
    stage = pair.stage
    training = stage.training()
    database = [p for p in pair.inside() if p.name == "mariadbd"]
    for process in database:
        processes.send_signal(process, signal.SIGSTOP)
    training.kill_rank(1)
    time.sleep(12)  # longer than any lease
    assert training.generations() == [1], "nothing that is not saved"
    for process in database:
        processes.send_signal(process, signal.SIGCONT)
    training.goes_on(generation=2)
    until("one leads", lambda: bool(pair.leads(FIRST)) != bool(pair.leads(SECOND)))
    assert training.heals()["state"] == "resolved"
    assert training.generations() == [1, 2]


def test_a_leader_that_ends_is_followed_at_once_and_a_standby_says_who_leads(pair: Pair) -> None:
    stage = pair.stage
    training = stage.training()
    config = ["unicronctl", "--config", "/etc/unicron/second.toml"]
    shown = stage.lab.exec([*config, "status"]).stdout
    assert "leader    head, the one that answers stands by; term 1, renewed" in shown
    refused = stage.lab.exec([*config, "mode", "paused"], check=False)
    assert refused.returncode == 1
    assert "this unicrond stands by: head leads (term 1)" in refused.stderr
    began = pair.send(FIRST, signal.SIGTERM)
    took = pair.followed(began)
    assert took < 4
    until("agents find it", lambda: training.agent("n1")["last_heard"] > began, 10)
    assert stage.lab.exec([*config, "mode", "active"]).returncode == 0
    assert training.generations() == [1]
    training.kill_rank(1)
    training.goes_on(generation=2)
