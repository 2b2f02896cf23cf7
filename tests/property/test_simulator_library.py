"""Input files, the comparison over seeds, the command and its pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator import library, plots, study
from simulator.engine import simulate
from simulator.kinds import KINDS
from simulator.laws import draw
from simulator.model import DAY, Freed
from unicrond.ctl import simulate as command
from unicrond.errors import BadInput

SMALL: dict[str, Any] = {
    "name": "small",
    "days": 2,
    "cluster": {"nodes": 4, "gpus_per_node": 8, "nodes_per_switch": 2},
    "runs": [
        {"id": 1, "throughput": {"curve": [[1, 1e15], [4, 3e15]]}, "nodes": 3},
        {"id": 2, "model": "7B", "nodes": 1},
    ],
    "failures": {
        "events": [
            {"hours": 5, "node": 3, "kind": "ECC error", "repair_hours": 2},
            {"hours": 20, "switch": 0, "kind": "switch lost"},
            {"hours": 30, "node": 1, "kind": "CUDA error"},
        ]
    },
    "repair": {"mean_hours": 4},
}


def written(folder: Path, **changes: Any) -> str:
    path = folder / "small.json"
    path.write_text(json.dumps({**SMALL, **changes}))
    return str(path)


def test_a_told_trace_is_read_as_it_is_written(tmp_path: Path) -> None:
    told = library.scenario(written(tmp_path))
    failures = told.failures(1)
    assert [(f.nodes, f.kind, f.repair / DAY * 24) for f in failures] == [
        ((3,), "ECC error", 2), ((0, 1), "switch lost", 4), ((1,), "CUDA error", 0),
    ]  # fmt: skip
    assert told.cluster.repair_seconds == 3 * 3600
    assert told.cluster.failures_per_node_second == pytest.approx(3 / 4 / 172800)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"runs": "case-9"}, "runs: no mix 'case-9'; mixes: case-1"),
        ({"runs": [{"id": 1, "model": "8B"}]}, "runs.0.model: no model '8B'"),
        ({"runs": [{"id": 1}]}, "runs.0: give either model or throughput"),
        ({"runs": [{"id": 1, "model": "405B"}]}, "runs.0: it has no legal size on 4 nodes"),
        ({"runs": [{"id": 1, "model": "13B", "nodes": 3}]}, "runs.0.nodes: 3 is no legal size"),
        ({"runs": SMALL["runs"][:1] * 2}, "two runs have the same id"),
        ({"cluster": {"nodes": 3}, "failures": {}}, "runs: they begin with 4 nodes, the cluster"),
        (
            {"failures": {"severe": 1, "shares": {"CUDA error": 1}}},
            "failures.shares: no kind of severity 1 for failures.severe",
        ),
        ({"failures": {"shares": {"CUDA error": 0}}}, "failures.shares: must not be negative"),
        ({"days": -1}, "days"),
        ({"colour": 1}, "colour"),
        ({"repair": {"mean_hours": 0}}, "repair.mean_hours"),
        ({"failures": {"shares": {"gremlins": 1}}}, "failures.shares.gremlins: unknown"),
        ({"failures": {"events": [{"hours": 1, "kind": "ECC error"}]}}, "events.0: give either"),
        (
            {"failures": {"events": [{"hours": 1, "node": 9, "kind": "ECC error"}]}},
            "events.0: the cluster has 4 nodes",
        ),
    ],
)
def test_what_is_wrong_with_a_scenario_is_named(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadInput, match=said.replace("(", r"\(")):
        library.scenario(written(tmp_path, **changes))


@pytest.mark.parametrize("text", ["{", "[]"])
def test_what_is_no_scenario_at_all_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(BadInput, match="scenario"):
        library.scenario(str(tmp_path / "x.json"))
    with pytest.raises(BadInput, match="bundled: trace-a"):
        library.scenario(str(tmp_path / "absent.json"))


@pytest.mark.parametrize(("name", "severe", "others"), [("trace-a", 10, 33), ("trace-b", 26, 80)])
def test_the_published_counts_are_those_of_every_seed(name: str, severe: int, others: int) -> None:
    for seed in range(5):
        failures = library.scenario(name).failures(seed)
        assert sum(f.repair > 0 for f in failures) == severe
        assert len(failures) == severe + others


@pytest.mark.parametrize(("name", "rate"), [("gpus-1024", 6.5), ("gpus-16384", 3.8)])
def test_published_rates_are_met(name: str, rate: float) -> None:
    scenario = library.scenario(name)
    cluster, told = scenario.cluster, 0
    for seed in range(10):
        drawn = draw(scenario.laws, cluster.nodes, 16, cluster.length, seed)
        told += sum(f.kind != "switch lost" for f in drawn)
    per_day = told / 10 / (cluster.nodes * cluster.length / DAY)
    assert 1000 * per_day == pytest.approx(rate, rel=0.1)


def test_all_that_is_bundled_can_be_read() -> None:
    for mix in library.mixes():
        assert library.scenario("gpus-16384", library.Changes(runs=mix)).cluster.runs
    for name in library.SCENARIOS:
        assert library.scenario(name).sources


FIGURES = {
    "detection_seconds", "transition_seconds", "redone_seconds", "healthy_percent", "foresees",
}  # fmt: skip


def test_every_figure_of_a_policy_has_a_source() -> None:
    for given in library.bundled("policies")["policies"]:
        assert FIGURES & set(given) <= set(given["sources"]), given["name"]


def test_a_policy_of_ones_own_says_what_it_is_like(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(
        json.dumps({"policies": [{"name": "mine", "like": "varuna", "healthy_percent": 50}]})
    )
    known = library.policies(path)
    assert (known["mine"].rule, known["mine"].healthy_percent) == ("elastic", 50)
    path.write_text(json.dumps({"policies": [{"name": "mine", "like": "nobody"}]}))
    with pytest.raises(BadInput, match=r"policies.0.like: no policy 'nobody'"):
        library.policies(path)
    path.write_text(json.dumps({"policies": [{"name": "mine", "like": "varuna", "rule": "luck"}]}))
    with pytest.raises(BadInput, match=r"policies.0.rule: no rule 'luck'; rules: replan"):
        library.policies(path)


def test_work_done_again_is_part_of_a_change() -> None:
    timing = library.policies()["megatron"].timing
    assert timing.change.restart == 1380 + 900
    assert timing.retry == 1380


def test_an_interval_is_that_of_student() -> None:
    ratio = study.Ratio.of([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])
    assert (ratio.mean, ratio.worst, ratio.behind) == (2, 1, -1)
    assert ratio.high - ratio.mean == pytest.approx(4.303 / 3**0.5, rel=1e-3)
    assert study.Ratio.of([2.0], [1.0]).low == 2


def test_unicron_is_within_reach_of_the_oracle_and_above_all_others() -> None:
    known, scenario = library.policies(), library.scenario("trace-b")
    found = study.study(scenario, [known[name] for name in study.USUAL], range(4))
    for name in study.USUAL:
        ratio = found.ratio(name)
        assert ratio is not None
        if name == "oracle":
            assert ratio.behind < 0.03
        elif name != "unicron":
            assert ratio.mean > 1, name


def test_the_command_tells_where_the_time_went(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path)
    command.simulate(path, ["unicron", "megatron"], seeds=2, plots=tmp_path / "p", as_json=True)
    answer = json.loads(capsys.readouterr().out)
    assert [policy["name"] for policy in answer["policies"]] == ["unicron", "megatron"]
    for policy in answer["policies"]:
        assert sum(policy["gpu_hours"].values()) == pytest.approx(answer["gpu_hours"])
    assert answer["policies"][0]["ours_over_it"]["mean"] == 1
    for name in ("waf", "unicron", "megatron"):
        assert (tmp_path / "p" / f"small-{name}.png").read_bytes().startswith(b"\x89PNG")
    command.simulate(path, ["unicron", "megatron"], seeds=2)
    shown = capsys.readouterr().out
    assert "32 GPUs for 2 days, 2 runs" in shown
    assert shown.count("\nmegatron") == 1


def test_the_command_names_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadInput, match="--policy: no policy 'nobody'; policies: unicron"):
        command.simulate("trace-a", ["nobody"])
    command.simulate(known=True)
    assert "case-5" in capsys.readouterr().out


def test_pictures_are_not_written_where_they_cannot_be(tmp_path: Path) -> None:
    scenario = library.scenario(written(tmp_path))
    outcome = simulate(
        scenario.cluster, library.policies()["unicron"], scenario.failures(1), records=True
    )
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="--plots: cannot write"):
        plots.draw(tmp_path / "file", "small", [outcome])


def test_slurm_gives_freed_nodes_to_others_only_if_asked() -> None:
    assert library.scenario("trace-a").cluster.queue.freed is Freed.OURS
    changed = library.Changes(queue=library.slurm_queue(0.5))
    queue = library.scenario("trace-a", changed).cluster.queue
    assert (queue.freed, queue.others_waiting) == (Freed.SLURM, 0.5)


def test_the_table_of_kinds_has_every_severity() -> None:
    assert {kind.severity for kind in KINDS.values()} == {1, 2, 3}
