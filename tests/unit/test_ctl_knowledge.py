"""unicronctl model, reliability and plan over the real routes, on a store that was learned into."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import httpx
import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from db.knowledge import CLUSTER, HEALS, Knowledge, Learned, Observation, Planned
from db.queries import Queries
from db.store import SqlStore, open_store
from tests.contract.test_store_contract import INCIDENT, NODE, RUN, snapshot
from unicrond.api.app import create_app
from unicrond.ctl import client, model
from unicrond.ctl.plan import plan
from unicrond.ctl.reliability import reliability
from unicrond.ctl.simulate import simulate
from unicrond.errors import Refused
from unicrond.model.incident import IncidentState, Scope, Severity
from unicrond.model.mode import Mode
from unicrond.planning.client import recorded
from unicrond.planning.followed import Followed
from unicrond.planning.learning import Learning
from unicrond.planning.triggers import Cause, Trigger
from unicrond.planning.words import Ask
from unicrond.ports import Changes

AT = 1_700_000_000.0


class NoControl:
    def set_mode(self, mode: Mode, run_id: int | None, who: str, why: str) -> None: ...

    def review(self, *_: object, **__: object) -> None: ...


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with closing(open_store(f"sqlite:///{tmp_path}/unicron.db")) as store:
        yield store


Ctl = Callable[..., Result]


@pytest.fixture
def ctl(tmp_path: Path, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ctl]:
    with closing(Queries(f"sqlite:///{tmp_path}/unicron.db")) as queries:
        api = create_app(queries, NoControl())  # type: ignore[arg-type]

        async def ask(path: str) -> httpx.Response:
            transport = httpx.ASGITransport(api)
            async with httpx.AsyncClient(transport=transport, base_url="http://u") as asker:
                return await asker.get(f"/v1{path}")

        def get(_: client.Client, path: str, **__: object) -> dict[str, object]:
            response = asyncio.run(ask(path))
            if not response.is_success:
                raise Refused(response.json()["message"])
            found: dict[str, object] = response.json()
            return found

        monkeypatch.setattr(client.Client, "__init__", lambda self, settings: None)
        monkeypatch.setattr(client.Client, "get", get)
        app = typer.Typer()
        app.command()(plan)
        app.command()(reliability)
        app.command()(simulate)
        app.add_typer(model.app, name="model")
        yield lambda *words: CliRunner().invoke(app, words)


def learned(store: SqlStore, tmp_path: Path) -> None:
    """As the planner's process would, after n1 was lost."""
    lost = replace(
        INCIDENT, severity=Severity.SEV1, scope=Scope.NODE, root_node="n1", run_id=RUN.run_id,
        state=IncidentState.RESOLVED, summary="n1 is silent",
    )  # fmt: skip
    nodes = tuple(replace(NODE, name=f"n{i}") for i in range(1, 5))
    store.save(Changes(runs=(RUN,), incidents=(lost,), snapshot=snapshot(AT, nodes=nodes)))
    seen = Observation(RUN.run_id, 16, 2, AT, (1.0, 1.1), 40)
    store.learn(Knowledge(observations=(seen,)))
    trigger = Trigger(Cause.SEV1, "n1 is silent", RUN.run_id, lost.incident_id, "n1", 3)
    with closing(Queries(f"sqlite:///{tmp_path}/unicron.db")) as queries:
        reply = Learning(queries).answer(Ask(AT, (trigger,)))
    facts = tuple(Learned(fact.kind, fact.subject, AT, fact.doc) for fact in reply.facts)
    assert reply.plan is not None
    store.learn(recorded(reply.plan, [trigger], facts, AT))


def test_a_models_table_tells_measured_from_prior(
    ctl: Ctl, store: SqlStore, tmp_path: Path
) -> None:
    learned(store, tmp_path)
    shown = ctl("model", "show", str(RUN.run_id))
    assert shown.exit_code == 0, shown.output
    assert "FLOPs not told, batch per-rank, layouts 1x1; GPU type not known" in shown.output
    assert re.search(r"\n16 +1\.05 ±6\.3 % +2 +40\n", shown.output)
    assert "assumed: exposed communication" in shown.output
    assert "samples/s by workers" in shown.output
    told = json.loads(ctl("model", "show", str(RUN.run_id), "--json").output)
    assert told["run_id"] == RUN.run_id and told["measured"][0]["windows"] == 2


def test_reliability_names_pools_nodes_changes_and_priors(
    ctl: Ctl, store: SqlStore, tmp_path: Path
) -> None:
    learned(store, tmp_path)
    shown = ctl("reliability").output
    assert "gpux8@gpu" in shown and "MTBF_DAYS" in shown
    assert "nodes that failed, the worst first:\nNODE" in shown
    assert re.search(r"\nrequeue +00:0[45]:.. +49\.1 s - 00:30:3. +0 +assumed", shown)
    assert "prior: 4.2 ± 2.1 a 1,000 node-days: Llama 3, RSC-1, RSC-2" in shown
    assert json.loads(ctl("reliability", "--json").output)["lemons"] == []


def test_the_newest_plan_is_shown_with_the_unlimited_one(
    ctl: Ctl, store: SqlStore, tmp_path: Path
) -> None:
    learned(store, tmp_path)
    shown = ctl("plan").output
    assert shown.startswith("SEV1, 2023-11-1")
    for words in (
        "sizes in nodes",
        "the best of what can be carried out today:",
        "the best if everything could be carried out:",
        "assumed: run 4711: FLOPs not told",
    ):
        assert words in shown
    told = json.loads(ctl("plan", "--json").output)
    question = tmp_path / "question.json"
    question.write_text(json.dumps(told["questions"]["today"]))
    again = json.loads(ctl("plan", "--what-if", str(question), "--json").output)
    assert again == told["today"]


def test_what_became_of_plans_stands_beside_what_they_predicted(
    ctl: Ctl, store: SqlStore, tmp_path: Path
) -> None:
    learned(store, tmp_path)
    assert "measured beside predicted" not in ctl("plan").output
    heal = Followed(12, RUN.run_id, AT, "shrink", "shrink", 49.0, 21.0, 2e17, 9e16, 0.75, None)
    store.learn(Knowledge(learned=(Learned(HEALS, CLUSTER, AT, json.dumps([asdict(heal)])),)))
    shown = ctl("plan").output
    assert "prices of the newest heals, measured beside predicted:" in shown
    assert re.search(r"\n12 +4711 +shrink +shrink +49.0 s +21.0 s +2e\+17 +9e\+16 +75%", shown)
    told = json.loads(ctl("plan", "--json").output)["followed"]
    assert told[0]["measured_kept"] is None and told[0]["predicted_price"] == 2e17


def test_unicrond_is_asked_for_the_incidents_of_a_past(
    ctl: Ctl, store: SqlStore, tmp_path: Path
) -> None:
    learned(store, tmp_path)
    history = str(Path(__file__).parents[2] / "docs" / "history.txt")
    words = ("simulate", "--history", history, "--policy", "unicron", "--json")
    gap = "our incidents are not given"
    assert gap in ctl(*words).output
    done = ctl(*words, "--incidents", "unicrond")
    assert done.exit_code == 0, repr(done.exception)
    found = json.loads(done.output)
    assert gap not in "".join(found["gaps"]) and found["failures"] == 3


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("model", "show", "12"), "nothing is known of the iterations of run 12 yet"),
        (("reliability",), "nothing was learned yet"),
        (("plan",), "no plan was made yet"),
    ],
)
def test_what_is_not_known_is_said(ctl: Ctl, words: tuple[str, ...], answer: str) -> None:
    ended = ctl(*words)
    assert isinstance(ended.exception, Refused)
    assert answer in str(ended.exception)


def test_the_next_events_are_foreseen_for_the_cluster_as_it_is(
    ctl: Ctl, store: SqlStore, tmp_path: Path
) -> None:
    learned(store, tmp_path)
    shown = ctl("plan", "--next").output
    assert re.search(r"\nrun 4711 loses a node +\S", shown)
    assert re.search(r"\na node returns +\S", shown)


def test_an_obstacle_is_told_instead_of_a_plan(ctl: Ctl, store: SqlStore) -> None:
    doc = {
        "today": {"obstacle": "runs: too many"}, "unlimited": {"obstacle": "runs: too many"},
        "assumed": [], "questions": {},
    }  # fmt: skip
    store.learn(Knowledge(plans=(Planned(AT, "run ended", json.dumps(doc)),)))
    assert ctl("plan").output.count("no plan: runs: too many") == 2


def test_a_plot_has_a_line_a_size_with_its_interval() -> None:
    told = [
        {"workers": w, "rate": 1.0 * w, "low": w / k, "high": w * k, "measured": w == 8}
        for w, k in ((4, 2.0), (8, 1.01), (16, 2.0))
    ]
    lines = list(model.plot(told))
    assert [line.split()[0] for line in lines] == ["4", "8", "16"]
    assert "*" in lines[1] and "-" not in lines[1].split("|")[1].replace("*", "").strip("- ")
    assert lines[0].index("o") < lines[1].index("*") < lines[2].index("o")
    assert lines[0].split("|")[1][0] == "-" and lines[2].split("|")[1][-1] == "-"
    assert list(model.plot([])) == []
