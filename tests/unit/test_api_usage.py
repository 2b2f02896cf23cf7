"""Where GPU time went: every GPU-second once, and what the API, the metrics and the alerts say."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st

from db.knowledge import CLUSTER, RELIABILITY, Knowledge, Learned, Planned
from db.queries import Queries
from db.spells import Held, Phase
from db.store import SqlStore
from detectors.trust import lower_bound
from tests.contract.test_store_contract import ALLOCATION, INCIDENT, RUN, snapshot
from unicrond.api.app import create_app
from unicrond.api.heartbeat import HEARTBEAT_KEY, Heartbeat
from unicrond.api.whatif import Planner
from unicrond.core.policy import Policy
from unicrond.core.state import from_saved
from unicrond.errors import Unavailable
from unicrond.figures import Timed, figures
from unicrond.ledger import CAUSES, MICROSECONDS, Piece, pieces, summed
from unicrond.model.cluster import JobState
from unicrond.model.decision import Decision, Mode
from unicrond.model.incident import IncidentState, Proof, Review
from unicrond.model.run import RunState
from unicrond.ports import Changes, Saved

ROOT = Path(__file__).parents[2]
HELD = Held(4711, "alice", "ml", "gpu", "llama", 16, ("n1", "n2"), 0.0, 100.0)
FAULT = replace(
    INCIDENT, first_signal_at=30.0, opened_at=32.0, decided_at=33.0, closed_at=50.0,
    state=IncidentState.RESOLVED,
)  # fmt: skip


def phase(began: float, state: str, *nodes: str) -> Phase:
    return Phase(4711, began, state, 1, nodes)


STORY = (
    phase(10.0, "starting"),
    phase(15.0, "running", "n1", "n2"),
    phase(33.0, "healing", "n1", "n2"),
    phase(50.0, "running", "n1"),
    phase(95.0, "completed", "n1"),
)


def by_cause(found: Iterator[Piece]) -> dict[str, float]:
    return {row.key: row.amount / MICROSECONDS for row in summed(found, "cause")}


def test_the_time_of_a_run_is_told_by_what_it_did() -> None:
    found = by_cause(pieces([HELD], {4711: STORY}, {4711: [FAULT]}, 0.0, 1000.0))
    assert found == {
        "starting": 15.0 * 16, "training": 15.0 * 16 + 45.0 * 8, "detection": 2.0 * 16,
        "decision": 1.0 * 16, "transition": 17.0 * 16, "left out": 45.0 * 8, "ending": 5.0 * 16,
    }  # fmt: skip


def test_a_companion_counts_to_its_run() -> None:
    companion = replace(HELD, job_id=4712, nodes=("n3", "n4"), began=50.0)
    told = [replace(one, run_id=4712, base=4711) for one in (phase(55.0, "running", "n1", "n3"),)]
    held = [HELD, companion]
    found = list(pieces(held, {4711: STORY, 4712: told}, {4711: [FAULT]}, 0.0, 100.0))
    assert [(r.key, r.amount) for r in summed(found, "run")] == [("4711", 150 * 16 * MICROSECONDS)]
    assert {row.key for row in summed(found, "job")} == {"4711", "4712"}
    mine = by_cause(iter(piece for piece in found if piece.job_id == 4712))
    assert mine == {"starting": 5.0 * 16, "training": 45.0 * 8, "left out": 45.0 * 8}


def test_a_job_that_is_no_run_is_told_apart() -> None:
    assert by_cause(pieces([HELD], {}, {}, 20.0, 50.0)) == {"unmanaged": 30.0 * 16}


def test_what_nobody_acts_on_is_not_called_training() -> None:
    left = replace(FAULT, closed_at=0.0, state=IncidentState.PERSON)
    running = [phase(0.0, "running", "n1", "n2")]
    found = by_cause(pieces([HELD], {4711: running}, {4711: [left]}, 0.0, 100.0))
    assert found == {
        "training": 30.0 * 16, "detection": 2.0 * 16, "decision": 1.0 * 16, "unmended": 67.0 * 16,
    }  # fmt: skip


moments = st.floats(0, 1000, allow_nan=False)
states = st.sampled_from([state.value for state in RunState])
spells = st.builds(
    lambda began, length, gpus, nodes: replace(
        HELD, began=began, ended=None if length is None else began + length, gpus=gpus,
        nodes=tuple(f"n{n}" for n in range(nodes)),
    ),
    moments, st.none() | moments, st.integers(0, 40), st.integers(1, 5),
)  # fmt: skip
stories = st.lists(st.builds(lambda at, state: phase(at, state, "n0", "n2"), moments, states))
faults = st.lists(
    st.builds(
        lambda a, b, c, d: replace(
            FAULT, first_signal_at=a, opened_at=b, decided_at=c, closed_at=d
        ),
        moments, moments, moments, moments,
    ),
    max_size=4,
)  # fmt: skip


@settings(max_examples=25, deadline=None, database=None)
@given(st.lists(spells, max_size=4), stories, faults, moments, moments)
def test_the_ledger_adds_up_exactly_to_allocation_times_time(
    held: list[Held], story: list[Phase], of_run: list[Any], began: float, ended: float
) -> None:
    found = list(pieces(held, {4711: story}, {4711: of_run}, began, ended))
    low, high = round(began * 1e6), round(ended * 1e6)
    ends = [high if one.ended is None else min(high, round(one.ended * 1e6)) for one in held]
    pairs = zip(held, ends, strict=True)
    whole = sum(o.gpus * max(0, end - max(low, round(o.began * 1e6))) for o, end in pairs)
    assert sum(piece.amount for piece in found) == whole
    assert {piece.cause for piece in found} <= set(CAUSES)
    for by in ("run", "job", "node", "account", "user", "cause", "kind"):
        rows = summed(found, by)
        assert sum(row.amount for row in rows) == whole
        assert all(sum(row.causes.values()) == row.amount for row in rows)


@lru_cache(maxsize=1)
def app_on(queries: Queries) -> FastAPI:
    return create_app(queries, None, now=lambda: 1000.0)  # type: ignore[arg-type]


def ask(queries: Queries, path: str, **headers: str) -> httpx.Response:
    app = app_on(queries)

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://unicrond") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(asked())


@pytest.fixture
def told(store: SqlStore) -> SqlStore:
    """A run of 16 GPUs from 100 on, that trains from 120 on, heals from 300 to 320, and goes on."""
    job = replace(ALLOCATION, state=JobState.RUNNING, start_time=100.0)
    fault = replace(FAULT, first_signal_at=298.0, opened_at=300.0, decided_at=301.0)
    running = replace(RUN, state=RunState.RUNNING, healing=None)
    store.save(Changes(snapshot=snapshot(100.0, job)))
    store.save(Changes(runs=(replace(running, state=RunState.STARTING),), at=101.0))
    store.save(Changes(runs=(running,), at=120.0))
    store.save(Changes(runs=(RUN,), incidents=(replace(fault, closed_at=0.0),), at=301.0))
    store.save(Changes(runs=(running,), incidents=(replace(fault, closed_at=320.0),), at=320.0))
    store.save(Changes(reviews=(Review(1, "silence.lost", Proof.CONFIRMED, 320.0),)))
    return store


def test_the_ledger_is_asked_for_by_what_one_wants_to_know(
    told: SqlStore, queries: Queries
) -> None:
    answer = ask(queries, "/v1/ledger?from=100&to=900&by=account").json()
    assert [row["key"] for row in answer["rows"]] == ["ml"]
    row = answer["rows"][0]
    assert row == answer["total"] | {"key": "ml"}
    assert row["gpu_seconds"] == sum(row["causes"].values()) == 800 * 16
    assert row["causes"] == {
        "starting": 20.0 * 16, "training": (178.0 + 580.0) * 16, "detection": 2.0 * 16,
        "decision": 1.0 * 16, "transition": 19.0 * 16,
    }  # fmt: skip
    assert row["goodput"] == pytest.approx(758 / 800)
    nodes = ask(queries, "/v1/ledger?from=100&to=900&by=node").json()["rows"]
    assert [(n["key"], n["gpu_seconds"]) for n in nodes] == [("n1", 6400.0), ("n2", 6400.0)]


def test_a_stretch_of_time_that_makes_no_sense_is_refused(queries: Queries) -> None:
    for query in ("from=900&to=100", "from=1&by=colour", "from=x", "from=2000"):
        assert ask(queries, f"/v1/ledger?{query}").status_code == 400, query


def exposed(queries: Queries) -> str:
    return ask(queries, "/metrics", accept="application/openmetrics-text").text


@pytest.fixture
def beating(told: SqlStore) -> SqlStore:
    state = from_saved(Saved(), Policy(), 900.0)
    numbers = figures(state, 900.0, 3, Timed(10, 0, 0.5), Timed(4, 1, 2.0))
    heart = Heartbeat(999.0, "0.1.0", Mode.ACTIVE, 7, 998.0, "", numbers)
    told.put_meta(HEARTBEAT_KEY, heart)
    return told


def test_metrics_tell_of_the_loop_the_cluster_and_lost_time(
    beating: SqlStore, queries: Queries
) -> None:
    lines = exposed(queries).splitlines()
    for line in (
        "unicron_loop_up 1.0", 'unicron_mode{mode="active"} 1.0', "unicron_agents_connected 7.0",
        "unicron_slurm_snapshot_age_seconds 2.0", "unicron_waiting_events 3.0",
        "unicron_loop_turns_total 10.0", "unicron_slurm_call_failures_total 1.0",
        f"unicron_drains_left {Policy().drains_per_hour}.0", 'unicron_gpus{of="managed"} 16.0',
        'unicron_lost_gpu_seconds{cause="transition"} 304.0',
        f"unicron_held_gpu_seconds {900.0 * 16}",
        'unicron_rule_record{proof="confirmed",rule="silence.lost"} 1.0', "# EOF",
    ):  # fmt: skip
        assert line in lines, line
    assert all(line.startswith(("unicron_", "# ")) for line in lines)


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"unicron_\w+", expression))


def test_alerts_and_dashboards_ask_only_for_what_is_told(
    beating: SqlStore, queries: Queries
) -> None:
    text = exposed(queries)
    known = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line[0] != "#"}
    for name, kind in re.findall(r"# TYPE (\w+) (\w+)", text):
        suffixes = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",)}
        known |= {name + suffix for suffix in suffixes.get(kind, ("",))}
    alerts = yaml.safe_load((ROOT / "monitoring/alerts.yml").read_text())["groups"][0]["rules"]
    for alert in alerts:
        assert names_in(alert["expr"]), alert
        assert names_in(alert["expr"]) <= known, alert["alert"]
    board = json.loads((ROOT / "monitoring/grafana-unicron.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(asked) > 20
    assert set().union(*map(names_in, asked)) <= known
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    alerts = yaml.safe_load((ROOT / "monitoring/alerts.yml").read_text())["groups"][0]["rules"]
    told = {alert["annotations"]["runbook"] for alert in alerts}
    pages = {f"docs/runbooks/{path.name}" for path in (ROOT / "docs/runbooks").glob("Unicron*.md")}
    assert told == pages
    assert all(alert["labels"]["severity"] in {"critical", "warning", "info"} for alert in alerts)
    index = (ROOT / "docs/runbooks/README.md").read_text()
    assert all(f"[{Path(page).stem}]" in index for page in pages)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_takes_the_rules() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", str(ROOT / "monitoring/alerts.yml")],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_what_would_have_been_done_is_held_against_what_people_did(
    store: SqlStore, queries: Queries
) -> None:
    running = replace(RUN, state=RunState.RUNNING, generation=3, healing=None)
    seen = replace(FAULT, incident_id=1, decided_at=33.0)
    would = Decision(33.0, 1, 4711, 3, "restart", "rank 0 is gone", False)
    done = replace(would, incident_id=2, acts=True)
    learned = Learned(
        RELIABILITY, CLUSTER, 1.0, json.dumps({"transitions": [{"kind": "restart", "seconds": 10}]})
    )
    store.save(Changes(runs=(running,), at=20.0))
    store.save(
        Changes(
            incidents=(seen, replace(seen, incident_id=2)), decisions=(would, done), at=33.0,
            reviews=(Review(1, "exit.code", Proof.CONFIRMED, 50.0),),
        )
    )  # fmt: skip
    store.save(Changes(runs=(replace(running, generation=4),), at=633.0))
    store.learn(Knowledge(learned=(learned,)))
    told = ask(queries, "/v1/trust").json()
    assert [rule["rule"] for rule in told["rules"]] == ["exit.code"]
    assert told["actions"] == [
        {
            "action": "restart", "observed": 1, "confirmed": 1, "refuted": 0, "undecided": 0,
            "bound": pytest.approx(lower_bound(1, 0)), "may_act": False,
            "people": {"restarted": 1}, "predicted_seconds": 10.0, "actual_seconds": 600.0,
            "saving_gpu_seconds": 590.0 * len(RUN.nodes) * RUN.ranks_per_node,
        }
    ]  # fmt: skip


def plan_of(store: SqlStore, question: object) -> None:
    doc = json.dumps({"today": {"waf": 7.5}, "questions": {"unlimited": question}})
    store.learn(Knowledge(plans=(Planned(5.0, "SEV1", doc),)))


def test_the_failover_table_is_of_the_newest_plan_and_asked_for_once(
    store: SqlStore, queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    entry = {"event": "a node returns", "obstacle": "", "changes": [], "sizes": {}, "gain": None}

    def answer(planner: Planner, words: str) -> object:
        asked.append(words)
        return [entry]

    monkeypatch.setattr(Planner, "_answer", answer)
    assert ask(queries, "/v1/plan/failover").status_code == 404
    plan_of(store, {"pools": []})
    assert ask(queries, "/v1/plan/failover").json() == {"at": 5.0, "items": [entry]}
    planner = Planner()
    assert planner.table(1.0, {}) == planner.table(1.0, {})
    assert [json.loads(words)["next"] for words in asked] == [True, True]
    assert "unicron_planned_waf 7.5" in exposed(queries).splitlines()


def test_what_ifs_are_asked_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner()

    def meanwhile(self: Planner, words: str) -> object:
        with pytest.raises(Unavailable, match="another what-if"):
            planner.ask({}, False)
        return {}

    monkeypatch.setattr(Planner, "_answer", meanwhile)
    assert planner.ask({}, False) == {}
