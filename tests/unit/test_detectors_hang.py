"""A hang is blamed on the rank that stands out, and on nobody when none does."""

from __future__ import annotations

from dataclasses import replace

from detectors.hang import Evidence, find

ALLREDUCE = 'File "/x/torch/distributed/distributed_c10d.py", line 2800 in all_reduce'
LOADER = 'File "/home/a/data.py", line 31 in read_shard'


def seen(rank: int, state: str = "S", overdue: bool = False, where: str = ALLREDUCE) -> Evidence:
    return Evidence(rank, f"n{rank}", state, 4.0, 0.2, overdue, where)


def test_a_stopped_rank_is_blamed_at_once() -> None:
    found = find([seen(0), seen(2, state="T")], world_size=4)
    assert found is not None
    assert found.rank == 2
    assert "is stopped" in found.reason


def test_a_slow_iteration_alone_is_only_a_suspicion() -> None:
    assert find([seen(rank) for rank in range(4)], world_size=4) is None


def test_the_one_who_is_not_in_the_collective_is_blamed_once_all_are_overdue() -> None:
    everyone = [seen(r, overdue=True, where=LOADER if r == 1 else ALLREDUCE) for r in range(4)]
    found = find(everyone, world_size=4)
    assert found is not None
    assert found.rank == 1
    assert "read_shard" in found.reason
    assert find(everyone[:3], world_size=4) is None


def at_collective(rank: int, number: int) -> Evidence:
    words = f"in collective {number}, all_reduce at train.py:31"
    return replace(seen(rank, overdue=True), collective=words, collectives=number)


def test_the_one_that_is_behind_in_the_collectives_is_blamed_once_all_are_overdue() -> None:
    everyone = [at_collective(rank, 41 if rank == 2 else 42) for rank in range(4)]
    found = find(everyone, world_size=4)
    assert found is not None
    assert (found.rank, found.rule) == (2, "hang.behind")
    assert "in collective 41, all_reduce at train.py:31" in found.reason


def test_torchs_own_count_goes_before_the_scripts_where_all_ranks_told_it() -> None:
    """Within DistributedDataParallel the script calls no collective."""
    everyone = [replace(at_collective(rank, 7), launched=90 - (rank == 3)) for rank in range(4)]
    found = find(everyone, world_size=4)
    assert found is not None
    assert (found.rank, found.rule) == (3, "hang.behind")
    assert "the others wait in number 90" in found.reason
    some = [replace(seen, launched=seen.launched * (seen.rank > 0)) for seen in everyone]
    found = find(some, world_size=4)
    assert found is not None
    assert found.rank is None


def test_collectives_that_cannot_be_compared_blame_nobody() -> None:
    unknown = [at_collective(rank, 42 * (rank > 0)) for rank in range(4)]
    three = [at_collective(rank, 40 + min(rank, 2)) for rank in range(4)]
    for everyone in (unknown, three):
        found = find(everyone, world_size=4)
        assert found is not None
        assert found.rank is None


def test_when_all_are_overdue_alike_the_run_hangs_and_nobody_is_blamed() -> None:
    found = find([seen(rank, overdue=True) for rank in range(4)], world_size=4)
    assert found is not None
    assert found.rank is None
