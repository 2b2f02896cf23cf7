"""What an agent makes of what its ranks' pages say of speed and losses."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from unicron import page
from unicrond.agent.inside import Inside
from unicrond.link.frames import Body
from unicrond.link.handshake import Identity
from unicrond.link.messages import beat
from unicrond.model.incident import SignalKind
from unicrond.model.pace import Pace
from unicrond.model.run import Slot


class Rank:
    """A page that somebody else writes, and the agent that reads it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        monkeypatch.setattr("time.monotonic_ns", lambda: int(self.now * 1e9))
        self.told: list[tuple[SignalKind, Body]] = []
        self.inside = Inside(folder, "", lambda kind, body: self.told.append((kind, body)))
        self.inside.begin(1, ())
        [path] = self.inside.environment(Slot(3, "m3", "n1", 0), {}).values()
        self.path = path
        self.page = page.Page(path)
        self.page.claim()

    def iterate(self, count: int, seconds: float = 0.2, loss: float | None = None) -> None:
        for _ in range(count):
            self.now += seconds
            self.page.iterated(None, loss)
            self.page.waited(50_000)
            self.inside.look()


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rank:
    return Rank(tmp_path, monkeypatch)


def as_heard(rank: Rank) -> tuple[tuple[int, Pace], ...]:
    """By unicrond, from a beat."""
    body = {
        "phase": "running", "generation": 1, "stopped_generation": 0, "iteration": -1, "peers": {},
        "paces": json.loads(json.dumps(rank.inside.paces())),
    }  # fmt: skip
    return beat(body, Identity(1, "n1", "n1-1"), 0.0).paces


def test_windows_of_five_iterations_go_with_the_beats_for_some_seconds(rank: Rank) -> None:
    rank.iterate(16)
    assert [(r, pace.window) for r, pace in as_heard(rank)] == [(3, 0), (3, 1), (3, 2)]
    newest = as_heard(rank)[-1][1]
    assert newest.seconds == pytest.approx(0.2, abs=0.01)
    assert newest.own_seconds == pytest.approx(0.15, abs=0.01)
    rank.now += 10
    assert as_heard(rank) == ()


def test_a_member_that_is_kept_counts_anew_in_the_next_generation(rank: Rank) -> None:
    rank.iterate(13)
    rank.inside.begin(2, [Slot(1, "m3", "n1", 0)])
    assert as_heard(rank) == ()
    rank.iterate(6)
    assert [(r, pace.window) for r, pace in as_heard(rank)] == [(1, 0)]


def test_a_process_that_takes_the_page_over_is_learned_from_at_once(rank: Rank) -> None:
    rank.iterate(20)
    rank.page = page.Page(rank.path)
    rank.page.claim()
    rank.iterate(2)
    rank.iterate(8, loss=math.nan)
    assert [kind for kind, _ in rank.told] == [SignalKind.LOSS]


def test_a_loss_that_is_no_number_is_told_with_its_train_step(rank: Rank) -> None:
    rank.page.explicit = True
    rank.iterate(30, loss=2.0)
    rank.iterate(5, loss=math.nan)
    [(kind, body)] = rank.told
    assert (kind, body["rank"]) == (SignalKind.LOSS, 3)
    data = json.loads(json.dumps(body["data"], allow_nan=False))
    assert data == {"not_a_number": True, "iteration": 30, "loss": "nan", "usual": "2.0"}


@pytest.mark.parametrize(
    "paces",
    [None, 7, [[]], [[0, 0, 1, 1]], [["0", 0, 1.0, 1.0]], [[0, 0, -1.0, 1.0]],
     [[0, 0, math.inf, None]], [[0, 0, math.nan, 0.5]]],
)  # fmt: skip
def test_paces_that_make_no_sense_are_left_out_of_a_beat(paces: object) -> None:
    body = {
        "phase": "running", "generation": 1, "stopped_generation": 0, "iteration": -1, "peers": {},
        "paces": paces,
    }  # fmt: skip
    assert beat(body, Identity(1, "n1", "n1-1"), 0.0).paces == ()
