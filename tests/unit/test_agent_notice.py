"""Slurm says that the job ends soon: who requeues it is one alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from unicrond.agent.notice import Notice, catches


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """This very process plays a rank that handles SIGUSR1, and not SIGUSR2."""
    got: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: got.append(number))
    yield got
    signal.signal(signal.SIGUSR1, before)


class Teller:
    def __init__(self, leads: bool = True) -> None:
        self.requeued: list[str] = []
        self.said: list[str] = []
        self.notice = Notice(
            lambda: [os.getpid()], lambda: leads, self.requeued.append, self.said.append
        )


def test_a_rank_that_handles_the_signal_gets_it_and_is_left_to_requeue(handled: list[int]) -> None:
    teller = Teller()
    teller.notice.heard(signal.SIGUSR1)
    assert handled == [signal.SIGUSR1]
    assert teller.requeued == []
    assert "stands aside" in teller.said[0]


def test_where_no_rank_handles_it_the_leader_requeues_once(handled: list[int]) -> None:
    teller = Teller()
    teller.notice.heard(signal.SIGUSR2)
    teller.notice.heard(signal.SIGUSR2)
    assert handled == []
    assert teller.requeued == ["SIGUSR2: the job ends soon; requeueing it"]


def test_who_does_not_lead_only_passes_it_on(handled: list[int]) -> None:
    teller = Teller(leads=False)
    teller.notice.heard(signal.SIGUSR1)
    teller.notice.heard(signal.SIGUSR2)
    assert handled == [signal.SIGUSR1]
    assert (teller.requeued, teller.said) == ([], [])


def test_a_process_that_is_gone_handles_nothing() -> None:
    assert not catches(2**22 + 1, signal.SIGUSR1)
