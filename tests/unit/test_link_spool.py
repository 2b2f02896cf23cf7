"""The spool: what is kept, what goes when it is full."""

from __future__ import annotations

from unicrond.link.frames import Body
from unicrond.link.spool import Spool


def signal(rank: int = 0, generation: int = 1) -> Body:
    return {"kind": "rank_exited", "age": 1.0, "generation": generation, "rank": rank}


def seqs(spool: Spool) -> list[int]:
    return [entry.seq for entry in spool.after(0)]


def test_entries_are_numbered_and_kept_until_acknowledged() -> None:
    spool = Spool()
    for _ in range(4):
        spool.add("signal", signal(), now=0.0, size_bytes=10)
    spool.acknowledge(2)
    assert seqs(spool) == [3, 4]
    spool.acknowledge(1)  # old news
    assert seqs(spool) == [3, 4]


def test_an_age_grows_while_its_entry_waits() -> None:
    spool = Spool()
    spool.add("signal", signal(), now=10.0, size_bytes=10)
    entry = spool.after(0)[0]
    assert entry.body(now=12.5)["age"] == 3.5
    assert entry.body(now=10.0) == signal() | {"type": "signal", "seq": 1, "age": 1.0}


def test_a_full_spool_drops_the_newest_repeat_first() -> None:
    spool = Spool(limit=3)
    spool.add("signal", signal(rank=0), now=0.0, size_bytes=10)
    spool.add("signal", signal(rank=0), now=0.0, size_bytes=10)
    spool.add("signal", signal(rank=1), now=0.0, size_bytes=10)
    spool.add("signal", signal(rank=0), now=0.0, size_bytes=10)
    assert seqs(spool) == [1, 2, 3]
    spool.add("signal", signal(rank=2), now=0.0, size_bytes=10)
    assert seqs(spool) == [1, 3, 5]
    assert spool.dropped == 2


def test_without_repeats_the_oldest_signal_goes_and_outcomes_stay() -> None:
    spool = Spool(limit=3)
    spool.add("outcome", {"key": {}}, now=0.0, size_bytes=10)
    for rank in range(3):
        spool.add("signal", signal(rank), now=0.0, size_bytes=10)
    assert seqs(spool) == [1, 3, 4]


def test_a_spool_of_outcomes_alone_stays_bounded() -> None:
    spool = Spool(limit=3)
    for _ in range(10):
        spool.add("outcome", {"key": {}}, now=0.0, size_bytes=10)
    assert seqs(spool) == [8, 9, 10] and spool.dropped == 7


def test_a_spool_is_bounded_in_bytes_too() -> None:
    spool = Spool(limit_bytes=100)
    for rank in range(10):
        spool.add("signal", signal(rank), now=0.0, size_bytes=30)
    assert seqs(spool) == [8, 9, 10]
    spool.acknowledge(9)
    spool.add("signal", signal(), now=0.0, size_bytes=60)
    assert seqs(spool) == [10, 11]
