"""unicronctl as a person or a script uses it, against the API's own process over a filled store."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
from docsworld import reading

from db.schema import REVISIONS
from db.store import open_store
from tests.contract.test_store_contract import ALLOCATION, INCIDENT, NODE, RUN, snapshot
from unicrond.api.control import ControlServer
from unicrond.api.heartbeat import HEARTBEAT_KEY, Heartbeat
from unicrond.ctl import completion
from unicrond.ctl.client import Client
from unicrond.ctl.main import main
from unicrond.ctl.why import subject_of
from unicrond.model.cluster import JobState, NodeState
from unicrond.model.decision import Alternative, Decision, Mode
from unicrond.model.events import Event, ReviewGiven, ShareSet
from unicrond.model.incident import IncidentState, Proof, Review
from unicrond.model.run import RunState
from unicrond.ports import Changes, JournalEntry

ROOT = Path(__file__).parents[2]
READY_SECONDS = 20.0
AT = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC


def fill(url: str) -> None:
    decision = Decision(
        AT + 1, 1, 4711, 3, "go on with 2 nodes", "n2 is lost: going on with 2 of 3 nodes", True,
        (Alternative("go on with 2 nodes", True, "loses a third"),
         Alternative("wait for n2", False, "5 h idle")),
    )  # fmt: skip
    lost = replace(NODE, name="n2", state=NodeState.DRAINED, raw_state="IDLE+DRAIN", reason="ours")
    free = replace(ALLOCATION, job_id=9, user="bob", state=JobState.PENDING, nodes=())
    others = [replace(NODE, name=f"n{number}") for number in range(3, 6)]
    with closing(open_store(url)) as store:
        heard = time.time() + 3600  # no loop is here: it must not fall silent on a busy machine
        store.put_meta(HEARTBEAT_KEY, Heartbeat(heard, "0.1.0", Mode.ACTIVE, 3, heard))
        store.save(
            Changes(
                runs=(RUN, replace(RUN, run_id=1, state=RunState.FAILED)),
                incidents=(
                    replace(INCIDENT, opened_at=AT, summary="n2 is silent"),
                    replace(INCIDENT, incident_id=2, state=IncidentState.RESOLVED),
                ),
                decisions=(decision,),
                journal=(
                    JournalEntry(AT - 86400, "note", "registered", 4711),
                    JournalEntry(AT, "signal", "n2 is \x1b[31msilent", 4711, 1, "n2", 3),
                    JournalEntry(AT + 1, "decision", decision.reason, 4711, 1, "", 3),
                    JournalEntry(AT + 2.5, "outcome", "drain n2 refused", 4711, 1, "n2", 3),
                ),
                reviews=tuple(
                    Review(n, "hang.overdue", Proof.REFUTED, AT, "alice") for n in range(2, 5)
                ),
                snapshot=snapshot(AT, ALLOCATION, free, nodes=(NODE, lost, *others)),
            )
        )


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Ctl = Callable[..., Ended]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("ctl")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = folder / "unicron.toml"
    config.write_text(
        f'cluster = "alpha"\ndatabase_url = "sqlite:///{folder}/unicron.db"\n'
        f'api_listen = "127.0.0.1:{port}"\napi_socket = "{folder}/api.sock"\n'
        f'control_socket = "{folder}/control.sock"\n'
    )
    fill(f"sqlite:///{folder}/unicron.db")
    command = [sys.executable, "-m", "unicrond.api", "--config", str(config)]
    with subprocess.Popen(command, cwd=ROOT) as api:
        deadline = time.monotonic() + READY_SECONDS
        while not (folder / "api.sock").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield config
        api.terminate()


@pytest.fixture
def ctl(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Ctl]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()

    def call(*words: str, config: Path = config) -> Ended:
        monkeypatch.setattr(sys, "argv", ["unicronctl", "--config", str(config), *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Ended(int(ended.value.code or 0), out, err)

    yield call
    monkeypatch.undo()
    time.tzset()


def test_runs_are_listed_in_columns(ctl: Ctl) -> None:
    assert ctl("runs").lines == [
        "RUN   NAME   USER   STATE    HEALING  GEN  ITERATION  RANKS  RUNNING_ON",
        "4711  llama  alice  healing  stop     3    -          2      n[1-2]",
    ]


def test_what_is_over_is_listed_when_asked_for(ctl: Ctl) -> None:
    assert ctl("runs", "-a", "-n", "-o", "run,state").lines == ["4711  healing", "1     failed"]
    assert ctl("incidents", "--all", "-n", "-o", "incident").lines == ["i2", "i1"]
    assert ctl("incidents", "-n", "-o", "incident").lines == ["i1"]
    assert ctl("incidents", "--run", "12").lines[1:] == []


def test_verbose_shows_every_column(ctl: Ctl) -> None:
    assert ctl("nodes", "-v").lines[0].split() == [
        "NODE", "STATE", "SLURM", "GPUS", "PARTITIONS", "SINCE", "BY", "REASON",
    ]  # fmt: skip


def test_json_has_every_field(ctl: Ctl) -> None:
    [run] = json.loads(ctl("runs", "--json").out)
    assert run["run_id"] == 4711
    assert run["ranks"][0]["member"] == "m-1"


def test_a_wrong_column_is_named_with_the_right_ones(ctl: Ctl) -> None:
    ended = ctl("nodes", "--format", "nod")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("unicronctl: --format: no column 'nod'; did you mean node?")


def test_jobs_without_the_wrapper_are_shown_as_not_managed(ctl: Ctl) -> None:
    assert ctl("allocations", "-n", "-o", "job,managed,nodes,started").lines == [
        "9     not managed  -       1970-01-01T00:00:06",
        "4711  yes          n[1-2]  1970-01-01T00:00:06",
    ]
    assert ctl("allocations", "-n", "-u", "bob", "-o", "job").lines == ["9"]


def test_lists_take_hostlists_states_and_partitions(ctl: Ctl) -> None:
    assert ctl("nodes", "-n", "-o", "node", "-w", "n[2-3,9]").lines == ["n2", "n3"]
    assert ctl("nodes", "-n", "-o", "node", "--states", "drained,down").lines == ["n2"]
    assert ctl("nodes", "-n", "-o", "node", "-p", "none").lines == []
    assert ctl("runs", "-n", "-o", "run", "-w", "n1").lines == ["4711"]
    assert ctl("incidents", "-n", "-o", "incident", "-w", "n1").lines == []
    assert ctl("allocations", "-n", "-o", "job", "-t", "pending").lines == ["9"]
    wrong = ctl("nodes", "-w", "n[3-")
    assert (wrong.code, "write a hostlist such as n[1-3,7]" in wrong.err) == (2, True)


def test_why_takes_a_hostlist(ctl: Ctl) -> None:
    told = [line for line in ctl("why", "n[1-2]").lines if line.startswith("node")]
    assert told == ["node n1  up", "node n2  drained: ours"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("mode", "paused"), "would set the mode of the cluster to paused; it is active"),
        (("mode", "paused", "-r", "4711"), "would set the mode of run 4711 to paused; it is "),
        (("incident", "refute", "i2"), "would call incident i2 of rule"),
        (("run", "weight", "4711", "1.5"), "would give run 4711 of alice weight 1.5"),
        (("db", "upgrade"), f"would go from {REVISIONS[-1]} to {REVISIONS[-1]}"),
    ],
)
def test_what_acts_can_be_tried_without_acting(ctl: Ctl, words: tuple[str, ...], told: str) -> None:
    ended = ctl(*words, "--dry-run")  # nobody listens for commands here: it would fail
    assert ended.code == 0
    assert ended.out.startswith(told)


def test_runs_and_incidents_are_completed_as_they_are_now(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNICRON_API_SOCKET", str(config.parent / "api.sock"))
    assert completion.subjects("") == ["4711", "i1"]
    assert completion.subjects("i") == ["i1"]
    assert completion.runs("5") == []
    monkeypatch.setenv("UNICRON_API_SOCKET", str(config.parent / "none.sock"))
    monkeypatch.setenv("UNICRON_API_LISTEN", "127.0.0.1:1")
    assert completion.subjects("") == []


def test_a_backup_is_made_beside_unicrond_and_brought_back_without_it(
    ctl: Ctl, config: Path, tmp_path: Path
) -> None:
    file, other = tmp_path / "unicron.backup", tmp_path / "other.toml"
    assert ctl("db", "backup", str(file)).out.endswith(f"rows in {file}\n")
    other.write_text(
        f'database_url = "sqlite:///{tmp_path}/new.db"\n'
        f'control_socket = "{tmp_path}/control.sock"\n'
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unicrond:
        unicrond.bind(str(tmp_path / "control.sock"))
        unicrond.listen()
        refused = ctl("db", "restore", str(file), config=other)
        assert (refused.code, "stop it first" in refused.err) == (1, True)
    assert "would restore" in ctl("db", "restore", str(file), "--dry-run", config=other).out
    assert ctl("db", "restore", str(file), config=other).code == 0
    assert ctl("db", "prune", "--days", "1", config=other).out.endswith("rows are gone\n")


def test_shells_are_told_how_to_complete(ctl: Ctl) -> None:
    assert (
        "complete -o default -F _unicronctl_completion unicronctl" in ctl("completion", "bash").out
    )
    assert ctl("completion", "dos").code == 2


def test_why_tells_the_story_with_what_was_weighed(ctl: Ctl) -> None:
    assert ctl("why", "4711").lines == [
        "run 4711  llama of alice: healing, generation 3, 2 ranks",
        "2023-11-13 UTC",
        "22:13:20.0  note          registered",
        "2023-11-14 UTC",
        "22:13:20.0  signal    n2  n2 is \N{REPLACEMENT CHARACTER}[31msilent",
        "22:13:21.0  decision      n2 is lost: going on with 2 of 3 nodes",
        "                            > go on with 2 nodes: loses a third",
        "                              wait for n2: 5 h idle",
        "22:13:22.5  outcome   n2  drain n2 refused",
    ]


@pytest.mark.parametrize("words", [["i1"], ["incident", "1"], ["incident", "i1"]])
def test_why_knows_incidents(ctl: Ctl, words: list[str]) -> None:
    lines = ctl("why", *words).lines
    assert lines[0] == "incident 1  SEV1 lost_node, open: n2 is silent"
    assert len(lines) == 7


def test_why_knows_nodes(ctl: Ctl) -> None:
    assert ctl("why", "node", "n2").lines[0] == "node n2  drained: ours"
    assert len(ctl("why", "n2", "-n").lines) == 3


def test_why_shows_the_end_of_a_long_story(ctl: Ctl) -> None:
    lines = ctl("why", "4711", "--lines", "1").lines
    assert lines[1] == "… more before this: --lines"
    assert lines[-1].endswith("drain n2 refused")
    assert len(json.loads(ctl("why", "4711", "--json").out)["lines"]) == 4


def test_words_about_a_subject_are_read_as_people_write_them() -> None:
    assert subject_of(["run", "4711"]) == "4711"
    assert subject_of(["node", "n1"]) == "n1"
    assert subject_of(["n1"]) == "n1"


def test_what_is_not_known_ends_with_1(ctl: Ctl) -> None:
    ended = ctl("why", "n77")
    assert (ended.code, ended.out) == (1, "")
    assert "unicronctl: n77: no node of that name" in ended.err
    assert ctl("why", "../health").code == 1


def test_status_fits_on_a_screen(ctl: Ctl) -> None:
    ended = ctl("status")
    assert ended.code == 0
    facts = dict(line.split(maxsplit=1) for line in ended.lines[:8])
    assert facts["cluster"] == "alpha"
    assert facts["mode"] == "active"
    assert facts["nodes"] == "4 up, 1 drained (n2)"
    assert facts["gpus"] == "40, 16 in managed runs, 0 in other jobs"
    assert facts["agents"] == "3"
    assert set(json.loads(ctl("status", "--json").out)) == {
        "health", "runs", "incidents", "nodes", "allocations",
    }  # fmt: skip


def test_mode_is_shown_for_the_cluster_and_for_a_run(ctl: Ctl) -> None:
    assert ctl("mode").out == "active\n"
    assert ctl("mode", "--run", "4711").out == "active\n"


def test_a_mode_that_does_not_exist_ends_with_2(ctl: Ctl) -> None:
    ended = ctl("mode", "on")
    assert ended.code == 2
    assert "observe" in ended.err


def test_a_mode_that_nobody_takes_ends_with_1(ctl: Ctl) -> None:
    ended = ctl("mode", "paused", "--why", "maintenance")
    assert ended.code == 1
    assert "unicronctl: unicrond's loop does not answer" in ended.err


def test_rules_are_listed_with_their_records(ctl: Ctl) -> None:
    heading, *rows = ctl("detectors").lines
    assert heading.split()[:4] == ["RULE", "KIND", "BAR", "CREDIT"]
    (row,) = (row for row in rows if row.startswith("hang.overdue "))
    assert row.split() == [
        "hang.overdue", "task", "hang", "0.60", "8", "0", "3", "0", "acts", "alice",
    ]  # fmt: skip
    assert json.loads(ctl("detectors", "--json").out)[0]["rule"] == rows[0].split()[0]


@pytest.fixture
def taken(config: Path) -> Iterator[list[Event]]:
    """What a loop behind the API was told."""
    events: list[Event] = []

    def take(event: Event, stored: Callable[[], None] | None) -> bool:
        events.append(event)
        if stored is not None:
            stored()
        return True

    loop = asyncio.new_event_loop()
    wait = partial(asyncio.run_coroutine_threadsafe, loop=loop)
    server = ControlServer(str(config.with_name("control.sock")), take, lambda: AT)
    thread = Thread(target=loop.run_forever)
    thread.start()
    wait(server.start()).result(5)
    yield events
    wait(server.stop()).result(5)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()


def test_a_runs_share_is_set(ctl: Ctl, taken: list[Event]) -> None:
    ended = ctl("run", "weight", "4711", "2.5", "--why", "a deadline")
    assert (ended.code, ended.out) == (0, "run 4711: weight 2.5, floor 0 nodes\n")
    assert ctl("run", "floor", "4711", "2").code == 0
    assert taken == [
        ShareSet(AT, 4711, "root (a deadline)", weight=2.5),
        ShareSet(AT, 4711, "root", floor_nodes=2),
    ]
    refused = ctl("run", "weight", "4711", "0")
    assert (refused.code, "weight: Input should be greater than 0" in refused.err) == (2, True)
    assert ctl("run", "floor", "99", "1").code == 1


def test_an_incident_is_confirmed_and_refuted(ctl: Ctl, taken: list[Event]) -> None:
    ended = ctl("incident", "refute", "i2", "--reason", "an evaluation")
    assert (ended.code, ended.out) == (0, "incident i2 of rule hang.overdue: refuted\n")
    assert ctl("incident", "confirm", "2").code == 0
    assert taken == [
        ReviewGiven(AT, 2, Proof.REFUTED, "root", True, "an evaluation"),
        ReviewGiven(AT, 2, Proof.CONFIRMED, "root", True),
    ]


@pytest.mark.parametrize(
    ("incident", "code", "words"),
    [
        ("hang", 2, "INCIDENT: 'hang' is no incident; see `unicronctl incidents`"),
        ("i99", 1, "incident 99 is not known"),
        ("i1", 1, "incident 1 was opened by no rule that keeps a record"),
        ("9" * 30, 2, "incident_id: Input should be less than 9223372036854775808"),
    ],
)
def test_what_is_no_such_incident_is_told(ctl: Ctl, incident: str, code: int, words: str) -> None:
    ended = ctl("incident", "refute", incident)
    assert (ended.code, words in ended.err) == (code, True)


def test_reading_goes_over_tcp_where_there_is_no_socket(ctl: Ctl, config: Path) -> None:
    other = config.with_name("tcp.toml")
    other.write_text(config.read_text().replace("api.sock", "absent.sock"))
    assert ctl("mode", config=other).out == "active\n"
    ended = ctl("mode", "active", config=other)
    assert (ended.code, "does not answer" in ended.err) == (1, True)


def test_a_daemon_that_is_down_is_told(ctl: Ctl, tmp_path: Path) -> None:
    config = tmp_path / "unicron.toml"
    config.write_text(f'api_socket = "{tmp_path}/absent"\napi_listen = "127.0.0.1:9"\n')
    for command in ("status", "runs", "mode"):
        ended = ctl(command, config=config)
        assert (ended.code, ended.out) == (1, "")
        assert f"does not answer on {tmp_path}/absent" in ended.err
        assert "systemctl status unicrond" in ended.err


def test_a_wrong_configuration_ends_with_2(ctl: Ctl, tmp_path: Path) -> None:
    config = tmp_path / "unicron.toml"
    config.write_text("clustre = 1")
    ended = ctl("status", config=config)
    assert (ended.code, "did you mean cluster?" in ended.err) == (2, True)


def test_db_makes_the_tables_and_tells_their_revision(ctl: Ctl, tmp_path: Path) -> None:
    config = tmp_path / "unicron.toml"
    config.write_text(f'database_url = "sqlite:///{tmp_path}/u.db"\n')
    assert ctl("db", "current", config=config).code == 1
    assert not (tmp_path / "u.db").exists()
    assert ctl("db", "upgrade", config=config).out == f"revision {REVISIONS[-1]}, was empty\n"
    assert ctl("db", "upgrade", config=config).out == f"revision {REVISIONS[-1]}\n"
    ended = ctl("db", "current", config=config)
    head = REVISIONS[-1]
    assert (ended.code, ended.out) == (0, f"revision {head}, this program needs {head}\n")


AS_NOBODY = """
import os, sys
from pathlib import Path
from unicrond import config
from unicrond.ctl import client
config.DEFAULT_PATH = client.DEFAULT_PATH = Path(sys.argv[1])
os.setgid(65534), os.setuid(65534)
print(client.settings_for(None).api_socket, client.settings_for(None).cluster)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_an_ordinary_user_need_not_read_the_configuration(tmp_path: Path) -> None:
    secret = tmp_path / "unicron.toml"
    secret.write_text('cluster = "secret"')
    tmp_path.chmod(0o700)
    shown = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(secret)],
        cwd=ROOT, env={"UNICRON_API_SOCKET": "/run/other.sock"}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert shown.stdout == "/run/other.sock cluster\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_tables_made_by_root_belong_to_the_folders_owner(ctl: Ctl, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    os.chown(tmp_path / "state", 65534, 65534)
    config = tmp_path / "unicron.toml"
    config.write_text(f'database_url = "sqlite:///{tmp_path}/state/u.db"\n')
    assert ctl("db", "upgrade", config=config).code == 0
    assert {file.stat().st_uid for file in (tmp_path / "state").iterdir()} == {65534}


def test_the_lab_is_part_of_it(ctl: Ctl) -> None:
    ended = ctl("lab", "--help")
    assert (ended.code, "fault" in ended.out) == (0, True)


def test_nodes_are_unknown_until_slurm_answered_once(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    health = {
        "ok": False, "cluster": "alpha", "mode": None, "loop": "unknown", "loop_age_seconds": None,
        "agents_connected": None, "slurm": "unknown", "snapshot_age_seconds": None,
        "database": "no answer",
    }  # fmt: skip
    monkeypatch.setattr(Client, "get", lambda *_: health)
    ended = ctl("status")
    assert ended.code == 1
    facts = dict(line.split(maxsplit=1) for line in ended.lines)
    assert (facts["nodes"], facts["gpus"], facts["agents"]) == ("unknown", "unknown", "unknown")
    assert facts["unicrond"] == "unknown, heard never"


@pytest.mark.parametrize("words", reading(), ids=" ".join)
def test_what_the_documents_ask_is_answered(
    ctl: Ctl, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    ended = ctl(*words)
    unknown = ended.err.startswith("unicronctl: nothing") or "no plan was made" in ended.err
    assert ended.code == 0 or (ended.code == 1 and (unknown or not ended.err)), ended.err
