"""What the API answers, over a real store. Commands go to a Control that notes them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from apiworld import NOW, OWNER, STRANGER, Client, NotingControl, beat, error, tell_a_story

from db.store import SqlStore
from tests.contract.test_store_contract import (
    ALLOCATION,
    INCIDENT,
    NODE,
    RUN,
    snapshot,
)
from unicrond import __version__
from unicrond.model.cluster import NodeState
from unicrond.model.decision import Mode
from unicrond.model.incident import Proof, Review
from unicrond.ports import Changes


def test_health_tells_how_everything_is(store: SqlStore, client: Client) -> None:
    beat(store)
    assert client().get("/v1/health").json() == {
        "ok": True,
        "cluster": "alpha",
        "version": __version__,
        "loop": "alive",
        "loop_age_seconds": 1.0,
        "mode": "active",
        "database": "ok",
        "slurm": "ok",
        "snapshot_age_seconds": 2.5,
        "agents_connected": 3,
        "leader": None,
    }


def test_what_is_unknown_is_said_to_be_unknown(client: Client) -> None:
    health = client().get("/v1/health").json()
    assert (health["ok"], health["loop"], health["slurm"]) == (False, "unknown", "unknown")
    for name in ("mode", "loop_age_seconds", "snapshot_age_seconds", "agents_connected"):
        assert health[name] is None


def test_a_silent_loop_is_not_taken_for_a_healthy_one(store: SqlStore, client: Client) -> None:
    beat(store, at=NOW - 60.0)
    health = client().get("/v1/health").json()
    assert (health["ok"], health["loop"], health["slurm"]) == (False, "silent", "unknown")
    assert health["agents_connected"] is None


def test_a_slurm_that_does_not_answer_is_told(store: SqlStore, client: Client) -> None:
    beat(store, slurm_error="slurmctld does not answer", snapshot_at=0.0)
    health = client().get("/v1/health").json()
    assert (health["ok"], health["slurm"]) == (False, "slurmctld does not answer")
    assert health["snapshot_age_seconds"] is None


def test_a_database_that_is_gone_is_told(client: Client, tmp_path: Path) -> None:
    for file in tmp_path.iterdir():
        file.unlink()
    health = client().get("/v1/health").json()
    assert not health["ok"]
    assert "unable to open database file" in health["database"]
    status, code, message = error(client().get("/v1/runs"))
    assert (status, code) == (503, "store_unavailable")
    assert "unable to open database file" in message


def test_allocations_show_who_holds_which_gpus(store: SqlStore, client: Client) -> None:
    other = replace(ALLOCATION, job_id=9, user="bob")
    store.save(Changes(runs=(RUN,), snapshot=snapshot(NOW, ALLOCATION, other)))
    items = client().get("/v1/allocations").json()["items"]
    assert [(i["job_id"], i["gpus"], i["managed"]) for i in items] == [
        (9, 16, False),
        (4711, 16, True),
    ]
    assert items[0]["nodes"] == ["n1", "n2"]
    store.save(Changes(snapshot=snapshot(NOW + 1)))
    assert client().get("/v1/allocations").json() == {"items": [], "next": None}
    past = client().get("/v1/allocations", params={"current": False, "user": "bob"}).json()
    assert [i["gone_at"] for i in past["items"]] == [NOW + 1]


def test_runs_are_shown_with_their_ranks_and_agents(store: SqlStore, client: Client) -> None:
    store.save(Changes(runs=(RUN,)))
    run = client().get("/v1/runs/4711").json()
    assert client().get("/v1/runs").json()["items"] == [run]
    assert (run["state"], run["healing"], run["mode"]) == ("healing", "stop", "active")
    assert run["running_on"] == ["n1", "n2"]
    assert run["ranks"][1] == {"rank": 1, "member": "m-2", "node": "n2", "local_rank": 0}
    assert run["agents"][0]["phase"] == "broken"


def test_pages_follow_one_another(store: SqlStore, client: Client) -> None:
    store.save(Changes(runs=tuple(replace(RUN, run_id=n) for n in range(1, 4))))
    first = client().get("/v1/runs?limit=2").json()
    second = client().get("/v1/runs", params={"limit": 2, "after": first["next"]}).json()
    assert [run["run_id"] for run in first["items"] + second["items"]] == [3, 2, 1]
    assert second["next"] is None


def test_an_incident_comes_with_its_actions_and_timeline(store: SqlStore, client: Client) -> None:
    tell_a_story(store)
    incident = client().get("/v1/incidents/1").json()
    assert [(a["key"], a["kind"], a["outcome"]) for a in incident["actions"]] == [
        ("1.3.0", "stop_ranks", "done"),
        ("1.3.7", "drain", None),
    ]
    assert [line["text"] for line in incident["timeline"]] == ["n2 is silent", "n2 is lost"]
    listed = client().get("/v1/incidents", params={"open": True, "run_id": 4711}).json()["items"]
    apart = ("actions", "timeline", "review", "decisions", "evidence")
    assert listed == [{k: v for k, v in incident.items() if k not in apart}]


@pytest.mark.parametrize(
    ("subject", "title", "texts"),
    [
        ("4711", "run 4711", ["n2 is silent", "n2 is lost"]),
        ("i1", "incident 1", ["n2 is silent", "n2 is lost"]),
        ("n1", "node n1", []),
    ],
)
def test_why_tells_the_story_in_order(
    store: SqlStore, client: Client, subject: str, title: str, texts: list[str]
) -> None:
    tell_a_story(store)
    why = client().get(f"/v1/why/{subject}").json()
    assert why["subject"] == title
    assert [line["text"] for line in why["lines"]] == texts


def test_why_gives_the_decision_with_what_was_weighed(store: SqlStore, client: Client) -> None:
    tell_a_story(store)
    why = client().get("/v1/why/4711").json()
    assert why["summary"] == "llama of alice: healing, generation 3, 2 ranks"
    assert why["lines"][0]["decision"] is None
    assert why["lines"][1]["decision"] == {
        "choice": "shrink",
        "reason": "n2 is lost",
        "acts": True,
        "alternatives": [{"name": "wait", "chosen": False, "price": "5 h idle"}],
    }


def test_a_node_with_the_name_of_an_incident_is_a_node(store: SqlStore, client: Client) -> None:
    node = replace(NODE, name="i1", state=NodeState.DRAINED, reason="a person's words")
    store.save(Changes(incidents=(INCIDENT,), snapshot=snapshot(NOW, nodes=(node,))))
    why = client().get("/v1/why/i1").json()
    assert (why["subject"], why["summary"]) == ("node i1", "drained: a person's words")


def test_a_node_that_slurm_lists_no_more_still_has_its_story(
    store: SqlStore, client: Client
) -> None:
    tell_a_story(store)
    why = client().get("/v1/why/n2").json()
    assert (why["subject"], why["summary"]) == ("node n2", "Slurm does not list it")
    assert [line["text"] for line in why["lines"]] == ["n2 is silent"]


def test_nodes_are_shown_by_name(store: SqlStore, client: Client) -> None:
    store.save(Changes(snapshot=snapshot(NOW, nodes=(replace(NODE, name="n2"), NODE))))
    assert [n["name"] for n in client().get("/v1/nodes").json()["items"]] == ["n1", "n2"]


@pytest.mark.parametrize(
    ("path", "status", "code", "words"),
    [
        ("/v1/runs/1", 404, "not_found", "run 1 is not known: was it submitted with unicron-run?"),
        ("/v1/incidents/1", 404, "not_found", "incident 1 is not known"),
        ("/v1/why/i1", 404, "not_found", "incident 1 is not known"),
        ("/v1/why/n77", 404, "not_found", "n77: no node of that name; a run is asked for by"),
        ("/v1/nothing", 404, "not_found", "Not Found"),
        ("/v1/runs/x", 400, "bad_input", "run_id: Input should be a valid integer"),
        ("/v1/runs/99999999999999999999", 400, "bad_input", "run_id: Input should be less than"),
        ("/v1/runs?limit=0", 400, "bad_input", "limit: Input should be greater than or equal to 1"),
        ("/v1/runs?after=x", 400, "bad_input", "after: not a place in this list"),
        ("/v1/mode", 405, "bad_input", "Method Not Allowed"),
    ],
)
def test_a_refusal_has_always_the_same_form(
    client: Client, path: str, status: int, code: str, words: str
) -> None:
    found = error(client().get(path))
    assert found[:2] == (status, code)
    assert words in found[2]


def test_a_bug_is_told_without_its_details(
    client: Client, store: SqlStore, control: NotingControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "set_mode", lambda *_: 1 / 0)
    response = client(uid=0).post("/v1/mode", json={"mode": "paused"})
    assert error(response)[:2] == (500, "internal")
    assert "division" not in response.text


def test_commands_are_not_taken_over_tcp(client: Client, control: NotingControl) -> None:
    response = client().post("/v1/mode", json={"mode": "active"})
    assert error(response)[:2] == (403, "forbidden")
    assert "commands come over the Unix socket" in response.text
    assert control.commands == []


@pytest.mark.parametrize("uid", [0, os.getuid(), 65534])
def test_admins_set_the_mode_of_the_cluster(
    client: Client, control: NotingControl, uid: int
) -> None:
    response = client(uid=uid).post("/v1/mode", json={"mode": "paused", "why": "maintenance"})
    assert response.json() == {"mode": "paused", "run_id": None}
    who = {0: "root", 65534: "nobody"}.get(uid)
    assert [c for c in control.commands if who in (c[2], None)] == control.commands
    assert control.commands[0][:2] == (Mode.PAUSED, None)
    assert control.commands[0][3] == "maintenance"


@pytest.mark.parametrize(
    ("uid", "cluster", "body", "words"),
    [
        (OWNER, Mode.ACTIVE, {"mode": "paused"}, "may not set the cluster's mode"),
        (STRANGER, Mode.ACTIVE, {"mode": "paused"}, "uid 4000000 may not set the cluster's mode"),
        (STRANGER, Mode.ACTIVE, {"mode": "paused", "run_id": 4711}, "run 4711 is alice's"),
        (OWNER, Mode.OBSERVE, {"mode": "active", "run_id": 4711}, "only an admin may make a run"),
    ],
)
def test_nobody_else_commands(
    store: SqlStore,
    client: Client,
    control: NotingControl,
    uid: int,
    cluster: Mode,
    body: dict[str, Any],
    words: str,
) -> None:
    store.save(Changes(runs=(RUN,)))
    beat(store, mode=cluster)
    response = client(uid=uid).post("/v1/mode", json=body)
    assert error(response)[:2] == (403, "forbidden")
    assert words in response.json()["message"]
    assert control.commands == []


@pytest.mark.parametrize(
    ("cluster", "mode"), [(Mode.OBSERVE, Mode.PAUSED), (Mode.ACTIVE, Mode.ACTIVE)]
)
def test_an_owner_sets_the_mode_of_their_run(
    store: SqlStore, client: Client, control: NotingControl, cluster: Mode, mode: Mode
) -> None:
    store.save(Changes(runs=(RUN,)))
    beat(store, mode=cluster)
    response = client(uid=OWNER).post("/v1/mode", json={"mode": mode, "run_id": 4711})
    assert response.status_code == 200
    assert control.commands[0][:2] == (mode, 4711)


def test_a_command_for_an_unknown_run_is_refused(client: Client, control: NotingControl) -> None:
    response = client(uid=0).post("/v1/mode", json={"mode": "active", "run_id": 12})
    assert error(response)[:2] == (404, "not_found")
    assert control.commands == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"mode": "on"}, "mode: Input should be 'observe', 'active' or 'paused'"),
        ({"mode": "active", "run": 1}, "run: Extra inputs are not permitted"),
        ({"mode": "active", "run_id": -1}, "run_id: Input should be greater than or equal to 0"),
        ({}, "mode: Field required"),
    ],
)
def test_a_malformed_command_is_refused(
    client: Client, control: NotingControl, body: dict[str, Any], words: str
) -> None:
    assert words in error(client(uid=0).post("/v1/mode", json=body))[2]
    assert control.commands == []


def test_a_loop_that_does_not_answer_is_told(client: Client, control: NotingControl) -> None:
    control.fault = "unicrond's loop does not answer"
    response = client(uid=0).post("/v1/mode", json={"mode": "active"})
    assert error(response) == (503, "daemon_unavailable", control.fault)


REVIEW = Review(1, "hang.overdue", Proof.REFUTED, NOW, RUN.user, "alice", "an evaluation")


@pytest.mark.parametrize(
    ("uid", "who", "official"), [(0, "root", True), (OWNER, f"uid {OWNER}", False)]
)
def test_an_owner_or_an_admin_says_whether_an_incident_was_one(
    store: SqlStore, client: Client, control: NotingControl, uid: int, who: str, official: bool
) -> None:
    store.save(Changes(runs=(RUN,), incidents=(INCIDENT,), reviews=(REVIEW,)))
    body = {"proof": "confirmed", "why": "it hung"}
    answer = client(uid=uid).post("/v1/incidents/1/review", json=body)
    assert answer.json() == {"incident_id": 1, "rule": "hang.overdue", "proof": "confirmed"}
    assert control.reviews == [(1, Proof.CONFIRMED, who, official, "it hung")]


@pytest.mark.parametrize(
    ("uid", "run_id", "path", "status"),
    [
        (STRANGER, 4711, "/v1/incidents/1/review", 403),
        (OWNER, None, "/v1/incidents/1/review", 403),
        (None, 4711, "/v1/incidents/1/review", 403),
        (0, 4711, "/v1/incidents/2/review", 404),
        (0, 4711, "/v1/incidents/3/review", 404),
    ],
)
def test_nobody_else_does_and_of_no_other_incident(
    store: SqlStore, client: Client, control: NotingControl,
    uid: int | None, run_id: int | None, path: str, status: int,
) -> None:  # fmt: skip
    ours = replace(INCIDENT, run_id=run_id)
    without = replace(ours, incident_id=2)
    store.save(Changes(runs=(RUN,), incidents=(ours, without), reviews=(REVIEW,)))
    assert error(client(uid=uid).post(path, json={"proof": "refuted"}))[0] == status
    assert control.reviews == []


def test_undecided_is_nothing_to_be_said(store: SqlStore, client: Client) -> None:
    store.save(Changes(incidents=(INCIDENT,), reviews=(REVIEW,)))
    response = client(uid=0).post("/v1/incidents/1/review", json={"proof": "undecided"})
    assert error(response)[:2] == (400, "bad_input")


def test_an_incident_tells_its_rule_and_what_was_said_of_it(
    store: SqlStore, client: Client
) -> None:
    incident = replace(INCIDENT, rule="hang.overdue", summary="all stand still")
    store.save(Changes(incidents=(incident,), reviews=(REVIEW,)))
    told = client().get("/v1/incidents/1").json()
    assert (told["rule"], told["review"]["proof"]) == ("hang.overdue", "refuted")
    summary = client().get("/v1/why/i1").json()["summary"]
    assert summary.endswith(
        "all stand still (opened by rule hang.overdue, refuted by alice: an evaluation)"
    )


def test_every_rule_is_listed_with_its_record(store: SqlStore, client: Client) -> None:
    of = [replace(REVIEW, incident_id=n) for n in range(3)]
    other = replace(REVIEW, incident_id=9, rule="gremlins.seen", proof=Proof.UNDECIDED)
    store.save(Changes(reviews=(*of, other)))
    items = {item["rule"]: item for item in client().get("/v1/detectors").json()["items"]}
    assert items["hang.overdue"] == {
        "rule": "hang.overdue", "kind": "task hang", "needs": 0.6, "credit": 8, "confirmed": 0,
        "refuted": 3, "undecided": 0, "acts": True, "observes_for": ["alice"],
    }  # fmt: skip
    assert (items["gremlins.seen"]["kind"], items["gremlins.seen"]["acts"]) == (None, False)
    assert items["exit.sigkill"]["needs"] == 0
    assert len(items) > 150


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b"x"


def test_a_body_that_is_too_long_is_not_read(client: Client) -> None:
    response = client(uid=0).post("/v1/mode", content=b"x" * 100_000)
    assert error(response)[:2] == (413, "too_large")
    response = client(uid=0).post("/v1/mode", content=endless())
    assert error(response)[:2] == (413, "too_large")


def test_every_answer_is_described_with_an_example(client: Client) -> None:
    schemas = client().get("/v1/openapi.json").json()["components"]["schemas"]
    ours = {n: s for n, s in schemas.items() if not n.startswith(("PageOut", "HTTPValidation"))}
    assert {n for n, s in ours.items() if "examples" not in s and "enum" not in s} <= {
        "ValidationError",
    }


def test_an_admin_sets_what_a_run_is_worth_and_guaranteed(
    store: SqlStore, client: Client, control: NotingControl
) -> None:
    store.save(Changes(runs=(RUN,)))
    body = {"weight": 7.5, "why": "a deadline"}
    response = client(uid=0).post("/v1/runs/4711/share", json=body)
    assert response.json() == {"run_id": 4711, "weight": 7.5, "floor_nodes": 0}
    assert control.shares == [(4711, 7.5, None, "root", "a deadline")]


def test_an_owner_may_only_lower_the_weight(
    store: SqlStore, client: Client, control: NotingControl
) -> None:
    store.save(Changes(runs=(RUN,)))
    ask = partial(client(uid=OWNER).post, "/v1/runs/4711/share")
    for body in ({"weight": RUN.weight * 2}, {"weight": RUN.weight, "floor_nodes": 1}):
        assert "only an admin may raise" in error(ask(json=body))[2]
    assert ask(json={"weight": RUN.weight / 2}).status_code == 200
    response = client(uid=STRANGER).post("/v1/runs/4711/share", json={"weight": 0.1})
    assert "only its owner and admins" in error(response)[2]
    assert [share[1] for share in control.shares] == [RUN.weight / 2]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"weight": 0}, "weight: Input should be greater than 0"),
        ({"floor_nodes": -1}, "floor_nodes: Input should be greater than or equal to 0"),
    ],
)
def test_no_share_is_set_that_makes_no_sense(
    store: SqlStore, client: Client, body: dict[str, Any], words: str
) -> None:
    store.save(Changes(runs=(RUN,)))
    assert words in error(client(uid=0).post("/v1/runs/4711/share", json=body))[2]
