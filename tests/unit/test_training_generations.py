"""A training function over generations: the agent's real socket, a collective that only notes."""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import unicron
from unicron import Run, generations
from unicron.channel import Channel, Order, parse_order
from unicron.collective import Place, Sockets, place_in
from unicron.errors import AgentGone, Revoked
from unicron.generations import Elastic, collective_for
from unicrond.agent.ranksocket import RankSocket
from unicrond.model.run import Slot

TORN = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer")


class Noted:
    """A collective that waits until it is revoked."""

    regroups = True

    def __init__(self) -> None:
        self.did: list[tuple[str, int]] = []
        self._revoked = -1
        self.changed = threading.Event()

    def form(self, place: Place, timeout_seconds: float) -> None:
        if place.generation <= self._revoked:
            raise Revoked(f"generation {place.generation} is over")
        self.changed.clear()
        self.did.append(("form", place.generation))

    def wait(self) -> None:
        assert self.changed.wait(5)
        raise TORN

    def revoke(self, generation: int) -> None:
        self._revoked = max(self._revoked, generation)
        self.did.append(("revoke", generation))
        self.changed.set()

    def leave(self) -> None:
        self.did.append(("leave", 0))


class Agent:
    """The real socket of an agent with one member, in a thread."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        folder.mkdir()
        self.socket = RankSocket(folder, self._place, lambda g, i: None, lambda m, t, w: None)
        asyncio.run_coroutine_threadsafe(self.socket.open(), self.loop).result(5)
        self.begin(1)

    def _place(self, member: str) -> tuple[Slot, int] | None:
        return (Slot(0, "m", "n1", 0), 2) if member == "m" else None

    def do(self, what: Callable[..., None], *args: Any) -> None:
        async def run() -> None:
            what(*args)

        asyncio.run_coroutine_threadsafe(run(), self.loop).result(5)

    def begin(self, generation: int, **environment: str) -> None:
        changed = {"UNICRON_GENERATION": str(generation), "RANK": "0", **environment}
        place = {"rank": 0, "world_size": 2, "environment": changed}
        self.do(self.socket.begin, generation, {"m": place})

    def stay(self, generation: int) -> None:
        self.do(self.socket.stay, generation)

    @property
    def regrouping(self) -> set[str]:
        return self.socket.regrouping

    def settle(self) -> None:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.01), self.loop).result(5)

    def end(self) -> None:
        self.do(self.socket.close)
        self.settle()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)
        self.loop.close()


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    found = Agent(tmp_path / "agent")
    for name, value in {
        "UNICRON_SOCKET": str(found.socket.path), "UNICRON_MEMBER": "m", "RANK": "0",
        "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_PORT": "1", "UNICRON_GENERATION": "1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    yield found
    found.end()


def test_train_is_entered_anew_in_each_generation_that_keeps_its_rank(agent: Agent) -> None:
    collective, runs = Noted(), []

    def train(run: Run, what: str) -> str:
        runs.append(run)
        if run.generation == 1:
            assert agent.regrouping == {"m"}
            agent.stay(1)
            threading.Thread(target=agent.begin, args=(2,), kwargs={"WORLD_SIZE": "3"}).start()
            collective.wait()
        return f"{what} {run.world_size}"

    assert Elastic(collective, 9.0)(train, "trained with") == "trained with 3"
    assert [(run.generation, run.world_size, run.entered) for run in runs] == [(1, 2, 0), (2, 3, 1)]
    did = [what for what, _ in collective.did if what != "revoke"]
    assert did == ["form", "leave", "form", "leave"]
    agent.settle()
    assert not agent.regrouping, "it said good-bye"


def test_a_process_that_was_started_beforehand_trains_once_it_is_taken_in(agent: Agent) -> None:
    collective, runs = Noted(), []
    os.environ["UNICRON_WAITS"] = "1"
    agent.stay(1)

    def take_in() -> None:
        while agent.regrouping != {"m"}:
            agent.settle()
        assert collective.did == []
        agent.begin(2, RANK="1")

    threading.Thread(target=take_in).start()
    Elastic(collective, 9.0)(runs.append)
    assert [(run.generation, run.rank, run.entered) for run in runs] == [(2, 1, 0)]
    assert collective.did[0] == ("form", 2)
    assert "UNICRON_WAITS" not in os.environ, "its children do not wait"


def test_who_was_started_beforehand_and_is_not_needed_ends(agent: Agent) -> None:
    os.environ["UNICRON_WAITS"] = "1"

    def leave_out() -> None:
        while agent.regrouping != {"m"}:
            agent.settle()
        agent.do(agent.socket.begin, 2, {})

    threading.Thread(target=leave_out).start()
    with pytest.raises(SystemExit, match="75"):
        Elastic(Noted(), 9.0)(lambda run: None)


def test_a_rank_leaves_a_world_that_is_over_at_its_next_heartbeat(agent: Agent) -> None:
    entered = []

    def train(run: Run) -> None:
        entered.append(run.generation)
        if run.generation == 1:
            agent.begin(2)
            for step in range(1000):
                unicron.heartbeat(step)
                agent.settle()

    collective = Noted()
    Elastic(collective, 9.0)(train)
    assert entered == [1, 2]
    assert unicron.before_next_step is None


def test_who_is_not_out_in_time_is_cut_and_then_ended(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generations, "STAY_GRACE_SECONDS", 0.02)
    monkeypatch.setattr(generations, "OUT_SECONDS", 0.05)
    ended: queue.Queue[int] = queue.Queue()
    monkeypatch.setattr(os, "_exit", ended.put)
    collective = Noted()

    def train(run: Run) -> None:
        agent.stay(1)
        assert ended.get(timeout=5) == generations.NOT_OUT
        assert collective.changed.is_set()

    Elastic(collective, 9.0)(train)
    assert "not out of generation 1" in capfd.readouterr().err


def test_an_error_that_comes_before_the_agents_word_waits_for_it(agent: Agent) -> None:
    entered = []

    def train(run: Run) -> None:
        entered.append(run.generation)
        if run.generation == 1:
            threading.Timer(0.02, agent.begin, args=(2,)).start()
            raise TORN

    Elastic(Noted(), 9.0)(train)
    assert entered == [1, 2]


def test_a_mistake_of_the_script_goes_on_at_once(agent: Agent) -> None:
    def train(run: Run) -> None:
        raise KeyError("a mistake")

    with pytest.raises(KeyError):
        Elastic(Noted(), 9.0)(train)


def test_who_is_not_kept_ends_with_its_own_error(agent: Agent) -> None:
    def train(run: Run) -> None:
        threading.Timer(0.02, agent.do, (agent.socket.begin, 2, {})).start()
        raise TORN

    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        Elastic(Noted(), 9.0)(train)


def test_without_a_word_the_error_goes_on(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "WORD_SECONDS", 0.02)

    def train(run: Run) -> None:
        raise TORN

    with pytest.raises(RuntimeError):
        Elastic(Noted(), 9.0)(train)


def test_a_generation_that_is_over_before_it_was_formed_is_skipped(agent: Agent) -> None:
    collective, entered = Noted(), []
    form = collective.form

    def slow(place: Place, timeout_seconds: float) -> None:
        if place.generation == 1:
            agent.begin(2)
            assert collective.changed.wait(5)
        form(place, timeout_seconds)

    collective.form = slow  # type: ignore[method-assign]
    Elastic(collective, 9.0)(lambda run: entered.append(run.generation))
    assert entered == [2]


def test_without_an_agent_it_is_entered_once_with_the_world_of_torchrun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        os, "environ", {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_PORT": "9"}
    )
    runs: list[Run] = []
    Elastic(Noted(), 9.0)(runs.append)
    assert runs == [Run(0, 3, 4, 1, 0)]


def test_a_place_that_makes_no_sense_names_the_variable() -> None:
    assert place_in({}) == Place(0, 0, 1, 0, "127.0.0.1", 0, True)
    told = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_PORT": "7"}
    assert place_in({**told, "UNICRON_GENERATION": "4"}).hosts_store
    torchrun = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "3"}
    assert place_in({**told, **torchrun}) == Place(3, 0, 2, 0, "127.0.0.1", 7, False)
    with pytest.raises(ValueError, match="WORLD_SIZE is '': start with unicron-run or torchrun"):
        place_in({"RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": "1"})
    with pytest.raises(ValueError, match="backend is 'mpi'"):
        collective_for("mpi")


@pytest.mark.parametrize(
    "body",
    [
        {"verb": "fly", "generation": 1},
        {"verb": "stay"},
        {"verb": "stay", "generation": True},
        {"verb": "regroup", "generation": 1, "environment": []},
        {"verb": "regroup", "generation": 1, "environment": {"A": 1}},
        {"verb": "regroup", "generation": 1, "environment": {"A": "\0"}},
    ],
)
def test_an_order_that_makes_no_sense_is_none(body: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        parse_order(body)


def test_a_channel_tells_orders_and_the_end_of_its_agent(agent: Agent) -> None:
    heard: queue.Queue[Order] = queue.Queue()
    channel = Channel(str(agent.socket.path), "m", regroups=True, ordered=heard.put)
    assert channel.greet() == 1
    agent.begin(2, COLOUR="red")
    order = heard.get(timeout=5)
    assert (order.verb, order.generation, order.environment["COLOUR"]) == ("regroup", 2, "red")
    assert channel.order_after(None, 5) is order
    assert channel.order_after(order, 0.01) is None
    assert channel.greet() == 2
    channel.close()
    with pytest.raises(AgentGone):
        channel.greet()


def test_who_is_no_member_is_told_why(agent: Agent) -> None:
    channel = Channel(str(agent.socket.path), "stranger", regroups=True, ordered=lambda order: None)
    with pytest.raises(AgentGone, match="hello of a member"):
        channel.greet()
    channel.close()
    with pytest.raises(AgentGone, match="no-such"):
        Channel("/no-such", "m", regroups=False, ordered=lambda order: None)


def test_only_connections_over_tcp_that_were_opened_meanwhile_are_cut() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sockets, address = Sockets(), listener.getsockname()
        before = socket.create_connection(address)
        with sockets.noted():
            ours, other = socket.create_connection(address), socket.socketpair()
        after = socket.create_connection(address)
        assert sockets.cut() == 1
        assert ours.recv(1) == b"", "whoever reads is set free"
        for one in (before, after, other[0]):
            one.setblocking(False)
            with pytest.raises(BlockingIOError):
                one.recv(1)
        sockets.forget()
        assert sockets.cut() == 0
        for one in (before, ours, after, *other):
            one.close()


def test_importing_unicron_brings_no_torch() -> None:
    code = "import sys, unicron; sys.exit('torch' in sys.modules or 'unicron.warm' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_outside_a_run_nothing_is_kept_and_it_says_so_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    code = "import unicron; unicron.checkpoint({}, 1); print(unicron.restore({}))"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("UNICRON")}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30, env=environment)
    said = capfd.readouterr()
    assert said.out == "None\n"
    assert said.err.count("not inside a run") == 1
