"""Lists, narrowed and paged, and what one node and the whole cluster are told with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from apiworld import NOW, Client, beat, error, tell_a_story

from db import newer
from db.store import SqlStore
from tests.contract.test_store_contract import ALLOCATION, INCIDENT, NODE, RUN, snapshot
from unicrond.api import view
from unicrond.model.cluster import NodeState
from unicrond.model.run import RunState
from unicrond.ports import Changes


def test_lists_are_narrowed_by_what_is_asked(store: SqlStore, client: Client) -> None:
    n2 = replace(NODE, name="n2", state=NodeState.DRAINED, switch="s2", partitions=("debug",))
    bobs = replace(RUN, run_id=9, user="bob", state=RunState.RUNNING)
    hang = replace(INCIDENT, incident_id=2, kind="task hang", root_node="n1", opened_at=50.0)
    jobs = (ALLOCATION, replace(ALLOCATION, job_id=9, account="bio", nodes=("n7",)))
    store.save(
        Changes(
            runs=(RUN, bobs), incidents=(INCIDENT, hang),
            snapshot=snapshot(NOW, *jobs, nodes=(NODE, n2)),
        )
    )  # fmt: skip
    for path, names in {
        "/v1/nodes?state=drained": ["n2"],
        "/v1/nodes?switch=s2&partition=debug": ["n2"],
        "/v1/nodes?partition=other": [],
        "/v1/nodes?after=n1": ["n2"],
    }.items():
        assert [n["name"] for n in client().get(path).json()["items"]] == names
    for path, key, numbers in (
        ("/v1/runs?user=bob", "run_id", [9]),
        ("/v1/runs?state=healing", "run_id", [4711]),
        ("/v1/incidents?node=n1", "incident_id", [2]),
        ("/v1/incidents?kind=task%20hang", "incident_id", [2]),
        ("/v1/incidents?since=20", "incident_id", [2]),
        ("/v1/incidents?severity=SEV3", "incident_id", []),
        ("/v1/allocations?account=bio", "job_id", [9]),
        ("/v1/allocations?node=n7&current=false", "job_id", [9]),
    ):
        assert [i[key] for i in client().get(path).json()["items"]] == numbers, path


def test_what_is_over_and_old_comes_from_the_store(
    store: SqlStore, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (newer, view):
        monkeypatch.setattr(module, "NEWEST", 3)
    ended = replace(RUN, state=RunState.COMPLETED)
    store.save(
        Changes(runs=(replace(RUN, run_id=1), *(replace(ended, run_id=n) for n in range(2, 9))))
    )
    found, after = list[int](), ""
    for _ in range(9):
        page = client().get("/v1/runs", params={"limit": 2, "after": after}).json()
        found += [run["run_id"] for run in page["items"]]
        after = page["next"]
        if after is None:
            break
    assert found == [8, 7, 6, 5, 4, 3, 2, 1]
    assert [r["run_id"] for r in client().get("/v1/runs?live=true").json()["items"]] == [1]


def test_a_node_is_shown_with_who_is_there_and_what_is_wrong(
    store: SqlStore, client: Client
) -> None:
    at_n1 = replace(INCIDENT, root_node="n1")
    store.save(Changes(runs=(RUN,), incidents=(at_n1,), snapshot=snapshot(NOW, ALLOCATION)))
    node = client().get("/v1/nodes/n1").json()
    assert (node["run_ids"], node["job_ids"]) == ([4711], [4711])
    assert [one["incident_id"] for one in node["incidents"]] == [1]
    assert error(client().get("/v1/nodes/n77"))[:2] == (404, "not_found")


def test_the_cluster_is_told_in_numbers(store: SqlStore, client: Client) -> None:
    down = replace(NODE, name="n2", state=NodeState.DOWN)
    store.save(Changes(runs=(RUN,), incidents=(INCIDENT,)))
    store.save(Changes(snapshot=snapshot(NOW, ALLOCATION, nodes=(NODE, down))))
    beat(store)
    told = client().get("/v1/cluster").json()
    assert told["nodes"] == {"down": 1, "up": 1}
    assert (told["gpus"], told["gpus_up"]) == (2 * NODE.gpus, NODE.gpus)
    assert (told["gpus_held"], told["gpus_managed"]) == (16, 16)
    assert (told["runs"], told["incidents"], told["mode"]) == (
        {"healing": 1},
        {"SEV1": 1},
        "active",
    )


def test_decisions_are_listed_with_their_alternatives(store: SqlStore, client: Client) -> None:
    tell_a_story(store)
    items = client().get("/v1/decisions?run_id=4711").json()["items"]
    assert [(d["choice"], d["alternatives"][0]["price"]) for d in items] == [("shrink", "5 h idle")]
    assert client().get("/v1/decisions?incident_id=7").json()["items"] == []
    assert client().get("/v1/incidents/1").json()["decisions"] == items
