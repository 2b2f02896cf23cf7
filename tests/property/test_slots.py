"""Commits, finished and replicated in any order, and any node lost at any moment: the newest train
step that was safe, or a newer one, is whole on the nodes that are left."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from unicron.slots import NOTHING, SLOTS, Agreed, Row, agree, packed, to_write, unpacked


class Run:
    """A rank a node; the copies of node n are kept by node n + 1 too, slot by slot."""

    def __init__(self, nodes: int, usable: int) -> None:
        self.nodes = nodes
        self.own = [[NOTHING] * usable for _ in range(nodes)]
        self.kept = [[NOTHING] * usable for _ in range(nodes)]  # of node n, by its keeper
        self.unfinished: dict[int, tuple[int, int]] = {}  # rank: slot, train step
        self.sending: dict[int, tuple[int, int]] = {}
        self.step = 0
        self.safe = NOTHING

    def row(self, rank: int) -> Row:
        whole = self.own[rank]
        same = (mine for mine, theirs in zip(whole, self.kept[rank], strict=True) if mine == theirs)
        row = Row(tuple(whole), tuple(step for step in same if step != NOTHING))
        return unpacked(packed(row))

    def commit(self, without: int) -> bool:
        """`without`: a rank that has NaN."""
        for rank in list(self.unfinished):
            self.finish(rank)
        rows = [self.row(rank) for rank in range(self.nodes)]
        agreed = agree(rows)
        assert agreed.safe >= self.safe or agreed.safe == NOTHING
        self.safe = max(self.safe, agreed.safe)
        self.step += 1
        if agreed.go:
            for rank, row in enumerate(rows):
                self.begin(rank, row, agreed, rank == without)
        return agreed.go

    def begin(self, rank: int, row: Row, agreed: Agreed, fails: bool) -> None:
        slot = to_write(row.slots, agreed)
        assert slot is not None
        self.own[rank][slot] = NOTHING
        if not fails:
            self.unfinished[rank] = slot, self.step

    def finish(self, rank: int) -> None:
        if rank in self.unfinished:
            slot, step = self.unfinished.pop(rank)
            self.own[rank][slot] = step

    def send(self, rank: int) -> bool:
        """The oldest that is not there; what its keeper had in that slot is gone at once."""
        pairs = zip(self.own[rank], self.kept[rank], strict=True)
        due = [(mine, n) for n, (mine, theirs) in enumerate(pairs) if mine not in (theirs, NOTHING)]
        if due:
            step, slot = min(due)
            self.kept[rank][slot] = NOTHING
            self.sending[rank] = slot, step
        return bool(due)

    def arrive(self, rank: int) -> None:
        """Unless it was written over while it was read."""
        if rank in self.sending:
            slot, step = self.sending.pop(rank)
            if self.own[rank][slot] == step:
                self.kept[rank][slot] = step

    def check(self) -> None:
        for lost in range(self.nodes):
            newest = max(self.without(lost), default=NOTHING)
            assert newest >= self.safe, f"node {lost} is lost: {vars(self)}"

    def without(self, lost: int) -> set[int]:
        """Train steps that are whole on the nodes that are left."""
        parts = [
            {*(self.own[n] if n != lost else ()), *(self.kept[n] if keeper != lost else ())}
            for n in range(self.nodes)
            for keeper in [(n + 1) % self.nodes]
        ]
        return set.intersection(*parts) - {NOTHING}


NODES = st.integers(2, 4)
ACTS = st.tuples(st.sampled_from(["commit", "finish", "send", "arrive"]), st.integers(-6, 3))


@settings(max_examples=400)
@given(NODES, st.sampled_from([2, SLOTS]), st.lists(ACTS, max_size=80))
def test_whatever_node_is_lost_a_safe_train_step_is_left(
    nodes: int, usable: int, acts: list[tuple[str, int]]
) -> None:
    run = Run(nodes, usable)
    for act, which in acts:
        if act == "commit":
            run.commit(without=which)
        else:
            getattr(run, act)(which % nodes)
        run.check()


@given(NODES, st.lists(ACTS, max_size=60))
def test_commits_go_on_once_replicas_have_come(nodes: int, acts: list[tuple[str, int]]) -> None:
    run = Run(nodes, SLOTS)
    for act, which in acts:
        run.commit(without=which) if act == "commit" else getattr(run, act)(which % nodes)
    run.sending.clear()
    for rank in range(nodes):
        run.finish(rank)
        while run.send(rank):
            run.arrive(rank)
    assert run.commit(without=NOTHING)
    for rank in range(nodes):
        run.finish(rank)
        assert run.send(rank)
        run.arrive(rank)
    assert max(run.without(0)) == run.step


def test_without_replicas_commits_are_passed_over_after_three_and_nothing_waits() -> None:
    run = Run(2, SLOTS)
    assert [run.commit(without=NOTHING) for _ in range(6)] == [True] * 3 + [False] * 3
