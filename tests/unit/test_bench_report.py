"""The common form of a measurement."""

import json
import subprocess
from pathlib import Path

import pytest

from bench import report
from bench.report import figure, finish
from bench.trainings import StepLog


def test_the_goal_is_held_against_the_median() -> None:
    one = figure("x", "s", [1.0, 2.0, 9.0], goal=2.0)
    assert (one.value, one.ok, one.n, one.min, one.max) == (2.0, True, 3, 1.0, 9.0)


def test_the_goal_is_held_against_the_worst_sample_where_a_figure_says_so() -> None:
    assert not figure("x", "s", [1.0, 2.0, 9.0], goal=8.0, worst=True).ok
    slowest = figure("x", "1/s", [5.0, 50.0], goal=10.0, better="higher", worst=True)
    assert (slowest.value, slowest.ok) == (5.0, False)


def test_a_goal_that_is_just_reached_is_reached_before_rounding() -> None:
    assert figure("x", "s", [2.0], goal=2.0).ok
    assert not figure("x", "s", [2.000049], goal=2.0).ok


def test_a_figure_without_samples_is_no_figure() -> None:
    with pytest.raises(ValueError, match="x: nothing was measured"):
        figure("x", "s", [])


def test_one_missed_goal_makes_the_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = figure("good", "s", [1.0], goal=2.0), figure("bad", "s", [3.0], goal=2.0)
    assert finish("test", [good, figure("told", "s", [9.0])]) == 0
    capsys.readouterr()
    assert finish("test", [good, bad], ["a note"]) == 1
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert list(told) == ["name", "date", "commit", "machine", "versions", "figures", "notes"]
    assert set(told["figures"][1]) == {
        "name", "value", "unit", "goal", "better", "ok", "n", "min", "median", "max",
    }  # fmt: skip
    assert "bad: 3 s, goal 2: MISSED" in printed.err


def test_a_checkout_that_was_changed_is_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> None:
        who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True)

    monkeypatch.setattr(report, "ROOT", tmp_path)
    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-qm", "one")
    assert len(report.commit()) == 12
    (tmp_path / "file").write_text("2")
    assert report.commit().endswith("+")


def line(step: int, generation: int, at: float) -> str:
    return json.dumps({"step": step, "generation": generation, "world_size": 4, "time": at}) + "\n"


def test_a_line_that_is_not_whole_yet_is_read_later(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    log = StepLog(path)
    assert log.look() == []
    first, second = line(1, 1, 10.0), line(2, 1, 10.2)
    path.write_text(first + second[:8])
    assert [step.number for step in log.look()] == [1]
    path.write_text(first + second)
    assert [step.number for step in log.look()] == [1, 2]


def test_the_gap_in_which_the_fault_fell_counts(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(line(n, 1, at) for n, at in enumerate([10.0, 10.2, 13.2, 13.4, 14.0])))
    assert max(StepLog(path).gaps(10.5, 13.3)) == pytest.approx(3.0)
    assert max(StepLog(path).gaps(13.25, 13.3)) == pytest.approx(0.2)


def test_the_first_step_after_a_fault_is_one_of_a_newer_generation(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text(line(5, 1, 10.0) + line(6, 1, 10.4) + line(3, 2, 14.0) + line(4, 2, 14.2))
    assert StepLog(path).first_after(10.2, 1, within_seconds=1).at == 14.0
