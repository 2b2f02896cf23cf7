"""Snapshots through the pipe: what goes in comes out, and only changes are told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unicrond.model.cluster import Allocation, JobState, Node, NodeState, Snapshot
from unicrond.slurm.codec import Decoder, Encoder, Look

NODE = Node("n1", NodeState.UP, "IDLE", 8, ("main", "gpu"), address="10.0.0.1")
JOB = Allocation(
    7, "train", "alice", 1001, "lab", "main", JobState.RUNNING, ("n1",), "n1", 8, comment="a\nb"
)
NODES = st.dictionaries(
    st.sampled_from(["n1", "n2", "n3"]), st.sampled_from(NodeState).map(lambda s: s), max_size=3
).map(lambda states: {name: replace(NODE, name=name, state=s) for name, s in states.items()})
JOBS = st.dictionaries(st.integers(1, 4), st.integers(0, 2), max_size=4).map(
    lambda told: {job_id: replace(JOB, job_id=job_id, restarts=n) for job_id, n in told.items()}
)
SNAPSHOTS = st.builds(
    Snapshot, st.floats(0, 2e9), st.none() | NODES, st.none() | JOBS, st.text(max_size=5)
)


@given(st.lists(SNAPSHOTS, max_size=6))
def test_every_snapshot_of_a_series_comes_out_as_it_went_in(series: list[Snapshot]) -> None:
    encoder, decoder = Encoder(), Decoder()
    for snapshot in series:
        line = encoder.encode(Look(snapshot, 2.0))
        assert "\n" not in line
        assert decoder.decode(line) == Look(snapshot, 2.0)


def test_what_did_not_change_is_not_told_again() -> None:
    encoder = Encoder()
    many = {f"n{i}": replace(NODE, name=f"n{i}") for i in range(1000)}
    first = encoder.encode(Look(Snapshot(1.0, many, {7: JOB}), 2.0))
    second = encoder.encode(Look(Snapshot(3.0, dict(many), {7: JOB}), 2.0))
    assert len(first) > 50_000
    assert len(second) < 200


@pytest.mark.parametrize(
    "line",
    ["", "hello", "[]", "{}", '{"at":1,"pause":2,"error":"","nodes":{"set":[[1]],"gone":[]}}',
     '{"at":1,"pause":2,"error":"","nodes":{"set":[],"gone":["n9"]},"allocations":null}'],
)  # fmt: skip
def test_a_line_that_is_no_snapshot_is_a_value_error(line: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Decoder().decode(line)
