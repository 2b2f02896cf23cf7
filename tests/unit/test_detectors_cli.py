"""`unicronctl classify` and `unicronctl diagnose` as a script uses them."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from unicrond.ctl.main import main


class Done(NamedTuple):
    code: int
    out: str
    err: str


Ctl = Callable[..., Done]


@pytest.fixture
def ctl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ctl:
    """`unicronctl` as its own process would run it: arguments, standard input, exit code."""

    def run(*words: str, given: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "argv", ["unicronctl", *words])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        with pytest.raises(SystemExit) as end:
            main()
        return Done(int(end.value.code or 0), *capsys.readouterr())

    return run


def test_classify_answers_line_by_line_in_the_same_order(ctl: Ctl, tmp_path: Path) -> None:
    rows = [
        {"id": "b", "source_kind": "stderr/traceback", "text": "KeyError: 'x'", "more": 1},
        {"id": 7, "source_kind": "application log", "text": "step 1 | loss 2.1"},
    ]
    file = tmp_path / "signals.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)) + "\n\n", encoding="utf-8")
    done = ctl("classify", str(file))
    assert done.code == 0, done.err
    first, second = map(json.loads, done.out.splitlines())
    assert list(first) == ["id", "kind", "severity", "blame", "recurs", "rule", "evidence"]
    assert (first["id"], first["kind"], first["recurs"]) == ("b", "user code bug", True)
    assert (second["id"], second["kind"], second["severity"]) == (7, "non-failure", "NONE")


def test_classify_reads_standard_input_and_bears_broken_utf_8(ctl: Ctl) -> None:
    line = b'{"id": 1, "source_kind": "x", "text": "\xff\xfe KeyError: \\ud800"}\n'
    done = ctl("classify", "-", given=line)
    assert done.code == 0, done.err
    assert json.loads(done.out)["id"] == 1


def test_diagnose_names_the_root(ctl: Ctl) -> None:
    incident = {
        "id": "i1",
        "ranks": [
            {"rank": 0, "node": "n1", "text": "Connection closed by peer [10.0.0.2]:1", "t": 2},
            {"rank": 1, "node": "n1", "text": "KeyError: 'x'", "t": None, "note": "seen"},
            {"rank": "GPU dc:00", "node": None, "text": ""},
        ],
    }
    done = ctl("diagnose", given=json.dumps(incident).encode())
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    assert list(answer) == [
        "id", "root_rank", "root_node", "kind", "severity", "confidence", "reason",
    ]  # fmt: skip
    assert (answer["root_rank"], answer["root_node"]) == (1, "n1")


@pytest.mark.parametrize(
    ("command", "line", "words"),
    [
        ("classify", "[]", "line 1: must be a JSON object"),
        ("classify", "{", "line 1: not a JSON object"),
        ("classify", "[" * 100_000, "line 1: not a JSON object"),
        ("classify", '{"source_kind": "x", "text": "y"}', "line 1: id is missing"),
        ("classify", '{"id": 1, "text": "y"}', "line 1: source_kind must be a string"),
        ("classify", '{"id": 1, "source_kind": "x", "text": 3}', "line 1: text must be a string"),
        ("diagnose", '{"id": 1}', "line 1: ranks must be a list"),
        ("diagnose", '{"id": 1, "ranks": [1]}', "line 1: ranks[0] must be an object"),
        ("diagnose", '{"id": 1, "ranks": [{"rank": 1.5, "text": ""}]}', "ranks[0].rank must be"),
        ("diagnose", '{"id": 1, "ranks": [{"rank": 1}]}', "ranks[0].text must be a string"),
        ("diagnose", '{"id": 1, "ranks": [{"rank": 1, "text": "", "t": "x"}]}', "ranks[0].t must"),
        ("diagnose", '{"id": 1, "ranks": [{"rank": 1, "text": "", "t": NaN}]}', "ranks[0].t must"),
    ],
)
def test_a_bad_line_ends_with_2_and_names_the_line_and_the_field(
    ctl: Ctl, command: str, line: str, words: str
) -> None:
    done = ctl(command, given=line.encode())
    assert done.code == 2
    assert words in done.err
    assert "Traceback" not in done.err


def test_a_file_that_is_not_there_is_named(ctl: Ctl) -> None:
    done = ctl("classify", "/nonexistent/signals.jsonl")
    assert done.code == 2
    assert "/nonexistent/signals.jsonl" in done.err
